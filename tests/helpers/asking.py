"""What is sent to a server over HTTP, and what it says of what it refuses."""

import io

import numpy as np

from soba.datasets.icons import icons

NAMES = ["bell", "bug", "bus", "camera"]
KEY = "k" * 24


def png(image):
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def pictures(count, domain="source"):
    drawn = icons(domain, per_class=count, classes=NAMES)
    order = np.random.default_rng(0).permutation(len(drawn.keys))[:count]
    return [png(drawn.image(int(i))) for i in order], [
        drawn.class_names[drawn.labels[i]] for i in order
    ]


def form(images, name="image"):
    return [(name, (f"{n}.png", image, "image/png")) for n, image in enumerate(images)]


def problem(response, status):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    said = response.json()
    assert said["status"] == status and said["title"]
    return said["detail"]
