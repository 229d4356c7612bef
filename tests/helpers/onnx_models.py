"""ONNX files of a few weights: mean colour -> features, mean token -> features."""

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

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


def text_tower(path, *, width=4, length=64, kind=TensorProto.INT64):
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


def wide_weights(path, *, width=4):
    """All pixels times weights of 0 and 1; column k holds a share of ones that grows with k."""
    inputs = 3 * SIZE * SIZE
    matrix = np.arange(inputs)[:, None] % width <= np.arange(width)
    return save(
        path,
        [
            helper.make_node("Flatten", ["pixels"], ["flat"]),
            helper.make_node("MatMul", ["flat", "matrix"], ["features"]),
        ],
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ("n", 3, SIZE, SIZE))],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ("n", width))],
        [numpy_helper.from_array(matrix.astype(np.float32), "matrix")],
    )


def int8(source, target):
    """A copy whose products are of 8 bits, quantised as people do it; returns its operators."""
    options = ort.SessionOptions()
    # Weights kept in half precision become plain ones, which the quantiser can take.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    model = onnx.load(target)
    del model.graph.value_info[:]  # shapes of what was folded, which no longer hold
    quantize_dynamic(model, target, weight_type=QuantType.QInt8, per_channel=True)
    return [node.op_type for node in onnx.load(target).graph.node]


CONFIG = """{
  "model_cfg": {
    "vision_cfg": {"image_size": %d}, "text_cfg": {"context_length": 64}
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
