// What every page can do with a text or a plot: copy it; save it as a picture or as a table.
(() => {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy);
    const text = "value" in source ? source.value : source.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(source);
      button.textContent = "Press Ctrl-C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });

  const quoted = (value) => /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value ?? "";
  const rowsOf = (trace) => {
    const name = trace.name || "";
    if (trace.z) return trace.z.flatMap((row, i) => [...row].map((z, j) => [name, trace.x[j], trace.y[i], z]));
    return Array.from(trace.x || [], (x, i) => [name, trace.base?.[i] ?? x, trace.y?.[i], trace.base ? x : ""]);
  };
  const save = (plot, kind) => {
    const name = (plot.layout.title?.text || plot.id || "plot").replace(/[^A-Za-z0-9]+/g, "-").toLowerCase();
    if (kind === "PNG") return Plotly.downloadImage(plot, {format: "png", scale: 2, filename: name});
    const rows = [["trace", "x", "y", "value"], ...plot.data.flatMap(rowsOf)];
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([rows.map((row) => row.map(quoted).join(",")).join("\n")], {type: "text/csv"}));
    link.download = `${name}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  // The buttons come when somebody looks at a plot: pages with twenty of them draw no faster for forty buttons.
  const equip = (event) => {
    const place = event.target.closest?.(".plot");
    const plot = place?.classList.contains("js-plotly-plot") ? place : place?.querySelector(".js-plotly-plot");
    if (!plot?.data?.length || place.querySelector(".plot-tools")) return;
    const tools = document.createElement("div");
    tools.className = "plot-tools";
    for (const kind of ["PNG", "CSV"]) {
      const button = Object.assign(document.createElement("button"), {type: "button", textContent: kind});
      button.setAttribute("aria-label", `Save this plot as ${kind}`);
      button.addEventListener("click", () => save(plot, kind));
      tools.append(button);
    }
    if (place.getAttribute("role") === "img") place.setAttribute("role", "group");
    place.append(tools);
  };
  document.addEventListener("pointerover", equip);
  document.addEventListener("focusin", equip);
})();
