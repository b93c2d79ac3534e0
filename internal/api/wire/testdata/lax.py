"""Writes lax.json: what pydantic's lax mode makes of values, as int, float and bool.

python lax.py > lax.json, with pydantic 2.
"""

import json
import math

from pydantic import TypeAdapter, ValidationError

NUMBERS = "5 -5 0 1 2 5.0 5.5 1e2 1e-2 -0.0 1.0 0.0 9007199254740991 1e300"
WORDS = (
    "5|-5|+5| 5 |5.0|5.|.5|5.5|1e2|1e-2|1_000|1_000.0|1__0|_1|1_|1_0.5|0x10|05|-05|00|0_1|-0|- 5|"
    "+-5|++5|+|-|.|e|5e|1e5_0|1_e5|-_1|1_.0|+0.5|5.00000|5.0_0|1.0e1||\\u00a05|5\\n| \\t|\\u0665|a|"
    "true|True|TRUE|false|t|f|T|y|n|yes|NO|on|off|OFF|"
    "1|0|2| true |1.0|0.0|tr|null|None|nan|NaN|inf|-inf|Infinity|iNf|1e400"
)
OTHERS = 'true false null [] {} [1] ["1"]'


def convert(kind, text):
    try:
        value = TypeAdapter(kind).validate_python(json.loads(text))
    except ValidationError:
        return "refused"
    if kind is not bool and (not math.isfinite(value) or abs(value) >= 2**63):
        return "beyond"
    return value


texts = NUMBERS.split(" ") + ['"%s"' % w for w in WORDS.split("|")] + OTHERS.split(" ")
rows = [[t, convert(int, t), convert(float, t), convert(bool, t)] for t in texts]
print("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]")
