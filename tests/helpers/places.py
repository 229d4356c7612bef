"""Places of kept samples in their streams, for tests that compare shards with one stream."""

import numpy as np


def places_of(adapter):
    """By id, the place in the stream of each image of the uniform samples."""
    arrays, places = adapter.state()["arrays"], {}
    for name in arrays:
        if name.endswith(".places"):
            ids = arrays[name.replace(".places", ".ids")].tolist()
            places |= dict(zip(ids, arrays[name].tolist(), strict=True))
    return places


def moved_to(adapter, places):
    """The same samples at other places, refreshed: what another time makes of them."""
    state = adapter.state()
    for name, array in state["arrays"].items():
        if name.endswith(".places"):
            ids = state["arrays"][name.replace(".places", ".ids")].tolist()
            array[:] = [places[id_] for id_ in ids]
    return type(adapter).from_state(state).refresh()


def earliest(streams):
    """By id, the earliest of its places in some streams of ids."""
    places = {}
    for ids in streams:
        for place, id_ in enumerate(np.asarray(ids).tolist()):
            places[id_] = min(place, places.get(id_, place))
    return places
