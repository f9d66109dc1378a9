"""Draws a dashboard's panels as one SVG from what a Prometheus has, for pages that show them where no Grafana is at hand.

`drawing` is all there is to call; `tests/e2e/dashboards_test.py --draw` has the server, the load and the Prometheus. It draws what a panel's
queries answer, in the panel's unit and kind; colours, ticks and legends are its own, not Grafana's.
"""
import math
from html import escape

WIDTH, PANEL, GAP, ROW, HEAD = 1200, (386, 206), 12, 30, 58  # pixels
LEFT, RIGHT, TOP, LEGEND, AXIS = 52, 10, 30, 13, 16  # within a panel; LEGEND is a line's height
LEGEND_LINES = 3
# Told apart by who does not see all colours (Okabe and Ito), then darker ones of the same.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c7a00", "#004b76", "#00664a", "#8e3e00", "#86506d", "#666666")
SI = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "µ"))
BINARY = ((1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"), (1, ""))


def number(value, unit):
    """As a person reads it: 0.0021 s is 2.1 ms."""
    if not math.isfinite(value):
        return "–"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s" and abs(value) >= 120:
        for least, name in ((2 * 86400, "d"), (2 * 3600, "h"), (0, "min")):
            if abs(value) >= least:
                return f"{value / {'d': 86400, 'h': 3600, 'min': 60}[name]:.3g} {name}"
    after = {"s": "s", "bytes": "B", "Bps": "B/s", "ops": "/s", "reqps": "/s"}.get(unit, "")
    if value == 0:
        return f"0 {after}".strip()
    if unit == "short" and abs(value) < 1:
        return f"{value:.2g}"
    for scale, prefix in BINARY if unit in ("bytes", "Bps") else SI:
        if abs(value) >= scale * 0.9995 or scale in (1e-6, BINARY[-1][0] if unit in ("bytes", "Bps") else 1e-6):
            if prefix in ("m", "µ") and unit != "s":
                return f"{value:.2g} {after}".strip()
            return f"{value / scale:.3g} {prefix}{after}".strip()
    return f"{value:.3g}"


def ticks(top, unit):
    """0 and up to four round numbers, the last at or above `top`."""
    if top <= 0:
        return [0, 1]
    if unit in ("bytes", "Bps") and top > 1024 or unit == "s" and top >= 120:  # round in what they are shown in
        scale = next(scale for scale, _ in (BINARY if unit != "s" else ((2 * 86400, ""), (2 * 3600, ""), (60, ""))) if top >= scale)
        scale = {2 * 86400: 86400, 2 * 3600: 3600}.get(scale, scale)
        return [scale * tick for tick in ticks(top / scale, "")]
    step = 10 ** math.floor(math.log10(top / 3))
    step = next(step * times for times in (1, 2, 5, 10) if step * times * 4 >= top)
    return [step * i for i in range(math.ceil(top / step - 1e-9) + 1)]


def text(x, y, words, size=11, fill="#333", anchor="start", weight="normal"):
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" font-weight="{weight}">{escape(words)}</text>'


def shortened(words, width, size=11):
    most = int(width / (size * 0.56))
    return words if len(words) <= most else words[:most - 1] + "…"


def legend(names, lasts, unit, x, y, width):
    """Each series with its last value, in the drawing's order; those that find no room are counted. Also the lines it takes."""
    rows, at = [[]], 0
    for i, (name, last) in enumerate(zip(names, lasts)):
        words = shortened(f"{name}  {number(last, unit)}".strip(), width - 20, 10)
        needs = 24 + len(words) * 5.9
        if at + needs > width and rows[-1]:
            rows, at = [*rows, []], 0
        rows[-1].append((at, i, words))
        at += needs
    left = sum(map(len, rows[LEGEND_LINES:]))
    rows = rows[:LEGEND_LINES]
    if left:
        while rows[-1] and rows[-1][-1][0] + 24 + len(rows[-1][-1][2]) * 5.9 + 70 > width:
            rows[-1].pop()
            left += 1
        at = rows[-1][-1][0] + 24 + len(rows[-1][-1][2]) * 5.9 if rows[-1] else 0
    made = []
    for line, row in enumerate(rows):
        for along, i, words in row:
            made.append(f'<rect x="{x + along:.0f}" y="{y + line * LEGEND - 6}" width="9" height="4" fill="{COLOURS[i % len(COLOURS)]}"/>')
            made.append(text(x + along + 13, y + line * LEGEND, words, 10))
    if left:
        made.append(text(x + at, y + (len(rows) - 1) * LEGEND, f"and {left} more", 10, "#666"))
    return made, len(rows)


def axes(tops, unit, start, end, x, y, width, height):
    """Horizontal lines with their numbers, and minutes below; `tops` are the ticks."""
    made = []
    for tick in tops:
        at = y + height - height * (tick - tops[0]) / (tops[-1] - tops[0])
        made.append(f'<path d="M{x} {at:.1f}h{width}" stroke="#e3e3e3"/>')
        made.append(text(x - 5, at + 3, number(tick, unit), 9, "#666", "end"))
    for second in range(0, int(end - start) + 1, 30):
        at = x + width * second / (end - start)
        made.append(text(at, y + height + 11, f"{second // 60}:{second % 60:02}", 9, "#666", "middle"))
    return made


def values(series, moments):
    """One number for each moment, NaN where there is none."""
    known = {round(float(at)): float(value) for at, value in series}
    return [known.get(round(moment), math.nan) for moment in moments]


def path(points):
    made, on = [], False
    for x, y in points:
        if math.isnan(y):
            on = False
        else:
            made.append(f"{'L' if on else 'M'}{x:.0f} {y:.1f}")
            on = True
    return "".join(made)


def lines(panel, answers, moments, x, y, width, height):
    unit, stacked = panel["fieldConfig"]["defaults"]["unit"], "stacking" in panel["fieldConfig"]["defaults"]["custom"]
    series = [(name, values(found, moments)) for name, found in answers]
    series = [(name, row) for name, row in series if any(map(math.isfinite, row))]
    if not series:
        return [text(x + width / 2, y + height / 2, "no data", 12, "#999", "middle")]
    series.sort(key=lambda each: -sum(filter(math.isfinite, each[1])))
    lasts = [next(filter(math.isfinite, reversed(row))) for _, row in series]
    names = [name for name, _ in series]
    _, used = legend(names, lasts, unit, x, y, width)
    words, _ = legend(names, lasts, unit, x, y + height - 4 - (used - 1) * LEGEND, width)
    x, width, height = x + LEFT, width - LEFT - RIGHT, height - used * LEGEND - AXIS - 4
    if stacked:
        below, rows = [0.0] * len(moments), []
        for _, row in series:
            above = [low + (value if math.isfinite(value) else 0) for low, value in zip(below, row)]
            rows.append((below, above))
            below = above
        top = max(below)
    else:
        top = max(value for _, row in series for value in row if math.isfinite(value))
    low = 0 if stacked else min(value for _, row in series for value in row if math.isfinite(value))
    tops = ticks(max(top, -low), unit)
    if low < 0:  # differences have a sign
        tops = [-tick for tick in reversed(tops[1:]) if -tick >= low - tops[1]] + ([tick for tick in tops if tick <= top + tops[1]] if top > 0 else [0])
    floor = tops[0]
    across = [x + width * (moment - moments[0]) / (moments[-1] - moments[0]) for moment in moments]

    def down(value):
        return y + height - height * (value - floor) / (tops[-1] - floor)
    made = axes(tops, unit, moments[0], moments[-1], x, y, width, height) + words
    for i in range(len(series)):
        colour = COLOURS[i % len(COLOURS)]
        if stacked:
            low, high = rows[i]
            shape = path([(a, down(b)) for a, b in zip(across, high)]) + path([(a, down(b)) for a, b in reversed(list(zip(across, low)))]).replace("M", "L", 1)
            made.append(f'<path d="{shape}Z" fill="{colour}" fill-opacity="0.45" stroke="{colour}" stroke-width="0.6"/>')
        else:
            made.append(f'<path d="{path([(a, down(b)) for a, b in zip(across, series[i][1])])}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return made


def stat(panel, answers, x, y, width, height):
    unit = panel["fieldConfig"]["defaults"]["unit"]
    found = [(name, float(series[-1][1])) for name, series in answers if series]
    if not found:
        return [text(x + width / 2, y + height / 2, "no data", 12, "#999", "middle")]
    made, each = [], height / len(found[:3])
    for i, (name, value) in enumerate(found[:3]):
        made.append(text(x + width / 2, y + each * (i + 0.5) + 8, number(value, unit), 30, "#0072b2", "middle", "bold"))
        if name:
            made.append(text(x + width / 2, y + each * (i + 0.5) + 26, name, 11, "#666", "middle"))
    return made


def table(answers, x, y, width):
    made = []
    for labels, value in answers[:1] if len(answers) == 1 else []:  # one row reads better stood up
        for i, (name, words) in enumerate(each for each in sorted(labels.items()) if each[0] not in ("__name__", "job", "instance")):
            made.append(text(x, y + 14 + 17 * i, name, 11, "#666"))
            made.append(text(x + 100, y + 14 + 17 * i, shortened(words, width - 100), 11))
        return made
    names = sorted({name for labels, _ in answers for name in labels if name not in ("__name__", "job", "instance")})
    for i, name in enumerate([*names, "value"]):
        made.append(text(x + width * i / (len(names) + 1), y + 14, name, 10, "#666"))
    for row, (labels, value) in enumerate(answers[:8]):
        for i, words in enumerate([*(labels.get(name, "") for name in names), number(value, "short")]):
            made.append(text(x + width * i / (len(names) + 1), y + 32 + 17 * row, shortened(words, width / (len(names) + 1) - 4, 10), 10))
    return made


def heatmap(answers, moments, unit, x, y, width, height):
    """Of cumulative buckets, named by their bound: how many fell into each."""
    rows = sorted((float(name.replace("+Inf", "inf")), values(found, moments)) for name, found in answers)
    cells, below = [], [0.0] * len(moments)
    for bound, row in rows:
        row = [value if math.isfinite(value) else 0 for value in row]
        cells.append((bound, [max(0, high - low) for high, low in zip(row, below)]))
        below = row
    used = [i for i, (_, row) in enumerate(cells) if any(value > 0 for value in row)]
    if not used:
        return [text(x + width / 2, y + height / 2, "no data", 12, "#999", "middle")]
    cells = cells[used[0]:used[-1] + 1]
    most = max(value for _, row in cells for value in row)
    x, width, height = x + LEFT, width - LEFT - RIGHT, height - AXIS
    tall, wide, made = height / len(cells), width / len(moments), []
    for i, (bound, row) in enumerate(cells):
        at = y + height - (i + 1) * tall
        if len(cells) <= 10 or i % 2 == 0:
            made.append(text(x - 5, at + tall / 2 + 3, ("≤ " + number(bound, unit)) if math.isfinite(bound) else "more", 9, "#666", "end"))
        for j, value in enumerate(row):
            if value > 0:
                made.append(f'<rect x="{x + j * wide:.1f}" y="{at:.1f}" width="{wide:.1f}" height="{tall - 1:.1f}" fill="#0072b2" '
                            f'fill-opacity="{0.12 + 0.88 * value / most:.2f}"/>')
    for second in range(0, int(moments[-1] - moments[0]) + 1, 30):
        made.append(text(x + width * second / (moments[-1] - moments[0]), y + height + 11, f"{second // 60}:{second % 60:02}", 9, "#666", "middle"))
    return made


def named(pattern, labels):
    for name, value in labels.items():
        pattern = pattern.replace("{{" + name + "}}", value)
    return pattern


def drawing(dashboard, moments, instant, ranged, below):
    """The SVG. instant(query) answers [(labels, number)] and ranged(query) [(labels, [(moment, number)])], at `moments`, evenly apart in
    seconds; both take a query as it stands in the dashboard. `below` is said under the title."""
    made, y = [text(GAP, 30, dashboard["title"], 20, "#111", weight="bold"), text(GAP, 48, below, 11, "#666")], HEAD
    column = 0
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            y += (PANEL[1] + GAP) if column else 0
            column = 0
            made.append(text(GAP, y + 20, panel["title"], 14, "#111", weight="bold"))
            y += ROW
            continue
        if column == 3:
            y, column = y + PANEL[1] + GAP, 0
        left, (width, height) = GAP + column * (PANEL[0] + GAP), PANEL
        column += 1
        made.append(f'<rect x="{left}" y="{y}" width="{width}" height="{height}" rx="3" fill="#fff" stroke="#d0d0d0"/>')
        made.append(text(left + 10, y + 19, panel["title"], 12, "#111", weight="bold"))
        inside = (left + 8, y + TOP, width - 16, height - TOP - 6)
        if panel["type"] == "table":
            made += table(instant(panel["targets"][0]["expr"]), left + 10, y + TOP, width - 20)
            continue
        answers = [(named(target["legendFormat"], labels), series) for target in panel["targets"] for labels, series in ranged(target["expr"])]
        if panel["type"] == "stat":
            made += stat(panel, answers, *inside)
        elif panel["type"] == "heatmap":
            made += heatmap(answers, moments, panel["fieldConfig"]["defaults"]["unit"], *inside)
        else:
            made += lines(panel, answers, moments, *inside)
    height = y + (PANEL[1] + GAP if column else 0)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + GAP} {height}" width="{WIDTH + GAP}" height="{height}" '
            f'font-family="DejaVu Sans, Verdana, sans-serif" role="img" aria-label="{escape(dashboard["title"])}">\n'
            f'<rect width="100%" height="100%" fill="#f6f6f6"/>\n' + "\n".join(made) + "\n</svg>\n")
