// A photo: by the phone's own camera app, or on a desk by a small window with the camera's picture.

import { byId, setText } from "./dom.js";

/** `taken(files)` gets the photos. */
export function startCamera(taken) {
  const dialog = byId("camera-dialog");
  const video = byId("camera-view");
  byId("photograph").addEventListener("click", async () => {
    const phone = matchMedia("(pointer: coarse)").matches;
    if (phone || !navigator.mediaDevices) { // which only pages of https and loopback have
      byId("camera").click();
      return;
    }
    setText(byId("intake-error"), "");
    try {
      video.srcObject = await navigator.mediaDevices.getUserMedia({ video: true });
    } catch {
      setText(byId("intake-error"), "There is no camera that this page may use.");
      return;
    }
    dialog.showModal();
  });
  byId("camera-take").addEventListener("click", async () => {
    const canvas = document.createElement("canvas");
    canvas.width = video.videoWidth;
    canvas.height = video.videoHeight;
    canvas.getContext("2d").drawImage(video, 0, 0);
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
    if (blob) taken([new File([blob], `photo ${new Date().toLocaleTimeString()}.jpg`, { type: blob.type })]);
  });
  byId("camera-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    for (const track of video.srcObject?.getTracks() ?? []) track.stop();
    video.srcObject = null;
  });
}
