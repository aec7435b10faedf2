"""hnswlib: a graph of vectors with the parameters that it is told."""

import statistics
import time

import hnswlib
import numpy as np

PACKAGES = ("hnswlib", "numpy")
GRAPHS = {}


def build(vectors, connectivity, expansion_add, expansion_search):
    """Make a graph of the vectors in a file, on one thread; return the seconds."""
    rows = np.load(vectors)
    index = hnswlib.Index("cosine", rows.shape[1])
    index.init_index(len(rows), M=connectivity, ef_construction=expansion_add)
    index.set_num_threads(1)
    begun = time.perf_counter()
    index.add_items(rows, num_threads=1)
    seconds = time.perf_counter() - begun
    index.set_ef(expansion_search)
    GRAPHS[vectors] = index
    return {"seconds": seconds}


def search(vectors, queries, count):
    """Search for each query in turn; return what was found and the median seconds of a search."""
    times, found = [], []
    for query in np.load(queries):
        begun = time.perf_counter()
        keys, _ = GRAPHS[vectors].knn_query(query, count, num_threads=1)
        times.append(time.perf_counter() - begun)
        found.append(keys[0].tolist())
    return {"seconds": statistics.median(times), "found": found}
