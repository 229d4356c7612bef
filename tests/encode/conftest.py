"""A small encoder, and jobs that extract features by it."""

import numpy as np
import pytest
from extractions import Noise
from onnx_models import model_folder

from soba.encode.extract import Extraction
from soba.encode.onnx import OnnxEncoder
from soba.encode.views import Views


@pytest.fixture(scope="module")
def small_encoder(tmp_path_factory):
    return OnnxEncoder.load(model_folder(tmp_path_factory.mktemp("models") / "mine"))


@pytest.fixture
def job(small_encoder):
    def make(count=11, broken=(), views=None, **options):
        images = options.pop("images", None) or Noise(count, broken)
        settings = {"labels": np.arange(count) % 2, "batch": 4} | options
        names, prompts = settings.pop("names", ("cat", "dog")), settings.pop("prompts", ("a {}.",))
        if views is not None:
            settings["views"] = Views(views, preprocess=small_encoder.preprocess)
        encoder = settings.pop("encoder", small_encoder)
        return Extraction(encoder, images, names, prompts, **settings)

    return make
