"""ONNX files of a few weights: mean colour -> features, mean token -> features."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE = 8


def save(path, nodes, inputs, outputs, weights=()):
    graph = helper.make_graph(nodes, "small", inputs, outputs, list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def image_tower(path, *, shape=("n", 3, SIZE, SIZE), width=4, half=False, gain=1.0):
    """Mean colour times a matrix; a black image has no direction."""
    kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    matrix = gain * np.random.default_rng(width).normal(size=(shape[1], width))
    return save(
        path,
        [
            helper.make_node("GlobalAveragePool", ["pixels"], ["mean"]),
            helper.make_node("Flatten", ["mean"], ["flat"]),
            helper.make_node("MatMul", ["flat", "matrix"], ["features"]),
        ],
        [helper.make_tensor_value_info("pixels", kind, shape)],
        [helper.make_tensor_value_info("features", kind, (shape[0], width))],
        [numpy_helper.from_array(matrix.astype(np.float16 if half else np.float32), "matrix")],
    )


def text_tower(path, *, width=4, length=16, kind=TensorProto.INT64):
    """Token ids times a matrix."""
    matrix = np.random.default_rng(width).normal(size=(length, width)).astype(np.float32)
    return save(
        path,
        [
            helper.make_node("Cast", ["tokens"], ["numbers"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", ["numbers", "matrix"], ["features"]),
        ],
        [helper.make_tensor_value_info("tokens", kind, ("m", length))],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ("m", width))],
        [numpy_helper.from_array(matrix, "matrix")],
    )


CONFIG = """{
  "model_cfg": {
    "vision_cfg": {"image_size": %d}, "text_cfg": {"context_length": 16}
  },
  "preprocess_cfg": {"mean": [0, 0, 0], "std": [1, 1, 1]},
  "soba": {"tokenizer": "bytes", "logit_scale": 20.0}
}"""


def model_folder(folder, **options):
    """Both towers and their description."""
    folder.mkdir(parents=True, exist_ok=True)
    image_tower(folder / "image.onnx", **options)
    text_tower(folder / "text.onnx", width=options.get("width", 4))
    (folder / "open_clip_config.json").write_text(CONFIG % SIZE)
    return folder
