"""soba/tiny/open_clip_model.safetensors -> image.onnx and text.onnx beside it, in float16 storage.

Weights are stored in half precision and cast when the model is loaded; everything is computed in
float32, so the towers agree with torch to rounding and the package stays small.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import model as tiny  # first: it makes torchvision importable
import numpy as np
import onnx
import torch
from onnx import numpy_helper

from soba._files import replacing


class Image(torch.nn.Module):
    def __init__(self, clip: torch.nn.Module) -> None:
        super().__init__()
        self.clip = clip

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.clip.encode_image(pixels, normalize=True)


class Text(torch.nn.Module):
    def __init__(self, clip: torch.nn.Module) -> None:
        super().__init__()
        self.clip = clip

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.clip.encode_text(tokens, normalize=True)


def main() -> None:
    clip = tiny.trained_model().eval()
    text = tiny.config()["text_cfg"]
    size = tiny.config()["vision_cfg"]["image_size"]
    # Two examples: with one, the exporter takes the number for a constant.
    export(Image(clip), torch.zeros(2, 3, size, size), "pixels", tiny.TINY / "image.onnx")
    tokens = torch.zeros(2, text["context_length"], dtype=torch.int64)
    export(Text(clip), tokens, "tokens", tiny.TINY / "text.onnx")
    total = sum(file.stat().st_size for file in tiny.TINY.iterdir() if file.is_file())
    print(f"{total / 1e6:.2f} MB in {tiny.TINY.name}/")


def export(module: torch.nn.Module, example: torch.Tensor, name: str, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the exporter's own future
        logging.disable(logging.WARNING)
        program = torch.onnx.export(
            module,
            (example,),
            input_names=[name],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("n", min=1)},),
            dynamo=True,
            optimize=False,  # it would fold scales into weights, which then are no halves any more
            verbose=False,
        )
        logging.disable(logging.NOTSET)
    graph = program.model_proto
    _halve(graph)
    graph.ClearField("metadata_props")
    for node in graph.graph.node:  # stack traces of the exporting machine
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    onnx.checker.check_model(graph)
    with replacing(path) as temporary:
        temporary.write_bytes(graph.SerializeToString(deterministic=True))


def _halve(model: onnx.ModelProto) -> None:
    """Store float32 weights as float16, with a cast that the runtime folds when it loads them."""
    casts = []
    for tensor in model.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        values = numpy_helper.to_array(tensor)
        half = values.astype(np.float16)
        if values.size < 64 or not np.array_equal(half.astype(np.float32), values):
            continue  # a constant of the graph, not a trained weight
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(half, f"{name}.half"))
        casts.append(
            onnx.helper.make_node("Cast", [f"{name}.half"], [name], to=onnx.TensorProto.FLOAT)
        )
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


if __name__ == "__main__":
    main()
