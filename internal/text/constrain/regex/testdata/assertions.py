"""Writes assertions.json: what Python's re finds of patterns with assertions in all short texts.

python3 assertions.py > assertions.json
"""

import itertools
import json
import re

ALPHABET = "a1 -"
LENGTH = 5
PATTERNS = r"""
\ba
a\b
\Ba
a\B
\b\w+\b$
^\b
\B.$
^\B.
\b-\b
^(?:\b[a1]{2}\b[ -]?)+$
(?:a\b|1\B)+$
^(?:\w\b\W|\W\b\w)*$
(?<=a)1
(?<!a)1
(?<=a1|1a)-
(?<![a1])(?![a1])
(?<=^a)1
(?<=\ba)1
(?<=a\b)-
(?<!\w)a(?!\w)
(?<=(?<!-)a)1
(?<=a(?=1))1
(?<=a(?!1-)).-
^(?:a(?!a)|1(?=a|$)|[ -])*$
^(?:(?=a1)a|(?!a)[1 -])+$
^(?!.*(?:a.*){3})
^(?=.*\d)(?=.*[a-z])(?!.*\s)\S{2,4}$
^(?:(?!--).)*$
^(?!.*(.*-){2})a
(?:(?<=a)1|(?<=1)a|^[a1])*$
^(?:(?<![a1])[a1]|(?<=[a1])[ -])+$
(?=a(?!1))a\b
(?!a\b)a
^(?:^a|\b1)+
(?:$|a)+\b
""".split("\n")[1:-1]

texts = ["".join(t) for n in range(LENGTH + 1) for t in itertools.product(ALPHABET, repeat=n)]
found = {}
for p in PATTERNS:
    bits = "".join("1" if re.search(p, t, re.ASCII) else "0" for t in texts)
    found[p] = format(int(bits, 2), "x")
print(json.dumps({"alphabet": ALPHABET, "length": LENGTH, "found": found}, indent=1))
