"""Small pictures in tars, Parquet files and a store in memory, as others write them."""

import io
import tarfile
import uuid

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def png(shade):
    """The content of a small picture; equal shades are equal bytes."""
    content = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 40, 90)).save(content, "png")
    return content.getvalue()


def tar_content(members, mode="w"):
    """A tar of (name, content) pairs; a content of None is a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.LNKTYPE, "elsewhere.png"
            else:
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content or b""))
    return buffer.getvalue()


def webdataset(count):
    """`count` samples as WebDataset has them: an image, its class, a mask and a note on each."""
    for number in range(count):
        yield f"{number:04d}.cls", b"3"
        yield f"{number:04d}.depth.png", png(200)
        yield f"{number:04d}.json", b"{}"
        yield f"{number:04d}.png", png(number)


def hugging_face(path, contents, **settings):
    """A Parquet file with a column "image" of bytes and path, and a label."""
    images = [{"bytes": content, "path": f"{n}.png"} for n, content in enumerate(contents)]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    columns = {"image": pa.array(images, kind), "label": pa.array([1] * len(images))}
    pq.write_table(pa.table(columns), path, **settings)


class Store:
    """A folder in fsspec's memory, which all tests of a process share."""

    def __init__(self):
        self.system = fsspec.filesystem("memory")
        self.url = f"memory://{uuid.uuid4().hex}"

    def put(self, name, content):
        self.system.pipe(f"{self.url}/{name}", content)
        return f"{self.url}/{name}"

    def clear(self):
        if self.system.exists(self.url):
            self.system.rm(self.url, recursive=True)
