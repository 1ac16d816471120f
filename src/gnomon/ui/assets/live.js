// The Serve page's answers: one request for every state of the controls, whose lines are shown as they come
// (pages/serve_answers.py). During a drag each state is answered by a preview alone; the whole answer comes at its end.
(() => {
  const {drag, waiting} = window.gnomon;
  let serial = 0, last = null, stop = null; // The state asked for last, and what ends its answer.
  let mistakes = new Set();

  // HTML that the server has made (and escaped), where it differs from what is there.
  const fill = (id, html) => {
    const place = document.getElementById(id);
    if (place && place.filled !== html) { place.innerHTML = html; place.filled = html; }
  };
  const tell = (page, messages) => {
    const now = new Set(Object.keys(messages).filter((name) => messages[name]));
    for (const name of mistakes) if (!now.has(name)) dash_clientside.set_props(`${page}-${name}-error`, {children: ""});
    for (const name of now) dash_clientside.set_props(`${page}-${name}-error`, {children: messages[name]});
    mistakes = now;
  };

  // A plot that Dash has laid out is drawn by plotly itself: Dash would take as long again.
  const frame = () => new Promise((done) => { requestAnimationFrame(done); setTimeout(done, 100); });
  const draw = async (id, figure, isWanted) => {
    let plot = null;
    while (!(plot = document.querySelector(`#${id} .js-plotly-plot`))?._fullLayout || !window.Plotly) {
      await frame(); // On its way: the page has just been laid out.
      if (!isWanted()) return;
    }
    // Its size is known: plotly would have the page laid out to find it. Afterwards it follows the window again.
    const {width, height} = plot._fullLayout;
    await Plotly.react(plot, figure.data, {...figure.layout, width, height});
    delete plot.layout.width;
    delete plot.layout.height;
    plot.layout.autosize = true;
    plot.isAnswer = figure.data.length > 0;
  };
  const clear = async (page, figure, isWanted) => {
    for (const graph of document.querySelectorAll(`#page-${page} .dash-graph[id^=${page}-plot-]`)) {
      if (!graph.querySelector(".js-plotly-plot")?.isAnswer) await draw(graph.id, figure, isWanted);
    }
  };

  const show = async (page, line, isWanted) => {
    if (line.messages) tell(page, line.messages);
    for (const [name, html] of Object.entries(line.texts || {})) fill(`${page}-${name}`, html);
    for (const [name, figure] of Object.entries(line.plots || {})) if (isWanted()) await draw(`${page}-plot-${name}`, figure, isWanted);
    if (line.blank) await clear(page, line.blank, isWanted);
  };

  const answer = async (route, page, asked) => {
    stop?.abort();
    stop = new AbortController();
    const mine = asked.serial, isWanted = () => mine === serial && document.getElementById(`page-${page}`);
    let over = waiting();
    try {
      const body = JSON.stringify(asked), headers = {"Content-Type": "application/json"};
      const reply = await fetch(route, {method: "POST", headers, body, signal: stop.signal});
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const {value, done} = await reader.read();
        const lines = (rest + (value || "")).split("\n");
        rest = lines.pop();
        for (const line of lines) {
          if (!isWanted()) return;
          await show(page, JSON.parse(line), isWanted);
          over();
        }
        if (done) return;
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    } finally {
      over();
    }
  };

  // The end of a drag: its last state has had a preview only.
  drag.atRest = () => { if (last?.asked.isDragged) ask(last.route, last.page, {...last.asked, isDragged: false}); };
  const ask = (route, page, asked) => {
    serial += 1;
    last = {route, page, asked: {...asked, serial}};
    answer(route, page, last.asked);
  };

  dash_clientside.gnomon.ask = (route, page, names, values) => {
    const raw = Object.fromEntries(names.map((name, i) => [name, values[i]]));
    ask(route, page, {raw, view: values.at(-1), isDragged: drag.isOn()});
    return dash_clientside.no_update;
  };
})();
