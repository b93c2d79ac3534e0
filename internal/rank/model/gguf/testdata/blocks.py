"""Writes blocks.json: random blocks of every quantised type, and the numbers that the gguf package
of PyPI (0.19.0) makes of them. Scales are finite numbers of 16 bits."""

import base64
import json

import gguf
import numpy as np

SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "MXFP4": [],
}
rng = np.random.default_rng(7)
all_types = {}
for name, scales in SCALES.items():
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (512 // elements, size), dtype=np.uint8)
    for at in scales:
        d = rng.normal(0, 0.02, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = d.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(0, 200, len(blocks))
    numbers = gguf.quants.dequantize(blocks, kind).astype("<f4")
    all_types[name] = {
        "blocks": base64.b64encode(blocks.tobytes()).decode(),
        "numbers": base64.b64encode(numbers.tobytes()).decode(),
    }
with open("blocks.json", "w") as out:
    json.dump(all_types, out, indent=0)
