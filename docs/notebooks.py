"""The notebooks of examples/notebooks as pages of the site: run, with what they show. A hook of mkdocs."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parents[1] / "examples" / "notebooks"
PLOTLY = "application/vnd.plotly.v1+json"


def on_files(files: Any, config: Any) -> Any:
    """Add a page for every notebook, and the library that draws their figures."""
    import nbclient
    import nbformat
    from mkdocs.structure.files import File
    from plotly.offline import get_plotlyjs

    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=as_markdown(notebook)))
    files.append(File.generated(config, "notebooks/plotly.min.js", content=get_plotlyjs()))
    return files


def as_markdown(notebook: Any) -> str:
    """A notebook that was run, cell by cell."""
    parts = ["<script src='../plotly.min.js'></script>"]
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        else:
            parts.append(f"```python\n{cell.source}\n```")
            parts += [_shown(one, f"plot-{number}") for one in cell.outputs]
    return "\n\n".join(parts) + "\n"


def _shown(output: Any, id: str) -> str:
    """What a cell shows: a figure, a table, or text."""
    data = output.get("data", {})
    if PLOTLY in data:
        layout = {name: data[PLOTLY].get(name, {}) for name in ("data", "layout")}
        call = f'Plotly.newPlot(\'{id}\', {json.dumps(layout)[:-1]}, "config": {{"responsive": true}}}})'
        safe = call.replace("</", "<\\/")
        return f"<div id='{id}'></div><script>{safe}</script>"
    if "text/html" in data:
        return f"<div>{' '.join(data['text/html'].split())}</div>"
    text = output.get("text") or data.get("text/plain", "")
    return f"<pre>{escape(text)}</pre>" if text else ""
