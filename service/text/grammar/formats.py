"""The string formats that a grammar enforces; those of dates as patterns, with the days that a month has.

Other formats are annotations, as JSON Schema has them by default.

Source: https://json-schema.org/draft/2020-12/json-schema-validation#section-7.3; RFC 3339, section 5.6 and appendix C
"""

_YEAR = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"  # not 0000, which many libraries refuse
_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
# Without the leap second, which few libraries read.
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

PATTERNS = {"date": f"^{_DATE}$", "date-time": f"^{_DATE}T{_TIME}$", "time": f"^{_TIME}$"}
# Formats of numbers, which say how a program holds them and nothing of their text. Source: OpenAPI's format registry
NUMBER_FORMATS = frozenset(
    {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64, 128)}
    | {"decimal", "decimal128", "double", "double-int", "float", "half", "int", "long", "single-float", "uint"}
)
# Formats that the grammar library knows itself.
NATIVE_FORMATS = frozenset({"duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"})
FORMATS = NATIVE_FORMATS | PATTERNS.keys()
