"""Numbers as people write and read them."""

import re

KIB, MIB, GIB = 2**10, 2**20, 2**30
GB = 10**9

SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def duration(text: str) -> float | None:
    """The seconds of a duration with its unit, such as `500ms` or `1.5 h`; None if it is none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(us|µs|ms|s|min|h)\s*", text)
    return float(match[1]) * SECONDS[match[2]] if match else None


def seconds(value: float) -> str:
    """A duration with three significant digits: '12.3 ms', '1.50 s', '4.2 min'."""
    size = abs(value)
    if size < 5e-10:  # Nobody measures less than a nanosecond.
        return "0 s"
    if size < 1e-3:
        return f"{value * 1e6:.3g} µs"
    if size < 1:
        return f"{value * 1e3:.3g} ms"
    if size < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.1f} min" if size < 7200 else f"{value / 3600:.1f} h"


def count(value: float) -> str:
    """A large number in short: '950', '12.3k', '4.56M'."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:.4g}"


def size(num_bytes: float) -> str:
    """Bytes in binary units: '16.0 GiB'."""
    for limit, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(num_bytes) >= limit:
            return f"{num_bytes / limit:.1f} {unit}"
    return f"{num_bytes:.0f} B"
