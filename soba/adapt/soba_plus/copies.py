"""stub until the helper is done"""
import numpy as np


def copy_weights(features: np.ndarray, key: int) -> np.ndarray:
    return np.ones(len(features))
