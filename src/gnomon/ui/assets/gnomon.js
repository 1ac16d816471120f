// What must happen in the browser: the address, sliders, copying.
(() => {
  const PAUSE_MS = 60; // Between two values of a slider that is being dragged.

  // The number at a slider's position, to three digits, and back.
  const span = (box) => ["least", "most", "steps", "log"].map((name) => Number(box.dataset[name]));
  const valueAt = (box, position) => {
    const [least, most, steps, log] = span(box);
    const share = position / steps;
    const value = log ? least * (most / least) ** share : least + (most - least) * share;
    return Number(value.toPrecision(log ? 3 : 6));
  };
  const positionOf = (box, value) => {
    const [least, most, steps, log] = span(box);
    const share = log ? Math.log(value / least) / Math.log(most / least) : (value - least) / (most - least);
    return Math.round(Math.min(Math.max(share, 0), 1) * steps);
  };
  const sliderOf = (id) => document.querySelector(`#${id}-slider`);

  // The first move counts at once, further ones at most every PAUSE_MS, the last one always.
  const pending = new Map();
  const send = (id) => {
    const wanted = pending.get(id);
    if (wanted.value === wanted.sent) { pending.delete(id); return; }
    wanted.sent = wanted.value;
    dash_clientside.set_props(id, {value: String(wanted.value)});
    setTimeout(() => send(id), PAUSE_MS);
  };
  document.addEventListener("input", (event) => {
    const box = event.target.closest?.(".track");
    if (!box) return;
    const id = event.target.id.replace(/-slider$/, "");
    const value = valueAt(box, Number(event.target.value));
    if (pending.has(id)) pending.get(id).value = value;
    else { pending.set(id, {value, sent: null}); send(id); }
  }, true);

  // Enter means now, not after the pause that ends typing.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !event.target.matches?.(".controls input[type=text][id]")) return;
    dash_clientside.set_props(event.target.id, {value: event.target.value});
  }, true);

  // A file that is too large is refused here, before it is sent anywhere.
  const refuseLarge = (event) => {
    const box = event.target.closest?.("[data-limit]");
    const files = box && (event.target.files || event.dataTransfer?.files);
    if (!files || ![...files].some((file) => file.size > Number(box.dataset.limit))) return;
    event.stopImmediatePropagation();
    event.preventDefault();
    const children = `The file is larger than ${Number(box.dataset.limit) / 2 ** 20} MiB.`;
    dash_clientside.set_props(box.dataset.message, {children});
  };
  document.addEventListener("change", refuseLarge, true);
  document.addEventListener("drop", refuseLarge, true);

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

  // The present page's own link opens it afresh. Dash would see no change: it does not know what the controls wrote into
  // the address.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a.nav.here");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    location.assign(link.href);
  }, true);

  const asText = (value) => {
    if (value === null || value === undefined) return "";
    return Array.isArray(value) ? value.join(",") : String(value);
  };

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    gnomon: {
      // Put HTML that the server has made (and escaped) into its places, where it differs from what is there.
      fill(page, texts) {
        for (const [name, html] of Object.entries(texts || {})) {
          const place = document.getElementById(`${page}-${name}`);
          if (place && place.filled !== html) { place.innerHTML = html; place.filled = html; }
        }
        return dash_clientside.no_update;
      },

      // Put what differs from the defaults into the address, and every slider where its number is.
      address(page, names, values) {
        const query = new URLSearchParams();
        names.forEach((name, i) => {
          const ticks = page.defaults[name] === "on" || page.defaults[name] === "off";
          const text = ticks ? (asText(values[i]) ? "on" : "off") : asText(values[i]);
          if (text !== page.defaults[name]) query.set(name, text);
          const id = `${page.path.slice(1)}-${name}`;
          const slider = sliderOf(id);
          if (slider && !pending.has(id) && text !== "" && Number(text) >= 0) {
            slider.value = positionOf(slider.closest(".track"), Number(text));
          }
        });
        const search = query.toString() ? `?${query}` : "";
        const here = location.pathname;
        if ((here === page.path || here === "/") && search !== location.search) {
          history.replaceState(history.state, "", page.path + search);
        }
        return search;
      },
    },
  });
})();
