// What must happen in the browser: the address and its history, sliders and lists, the theme, the panel.
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

  // Dash drops the answer to a question once a newer one is asked: a slider that is dragged waits for each answer, so
  // that there is always something to see.
  let unanswered = 0;
  const waiting = () => {
    let isOver = false;
    unanswered += 1;
    return () => { if (!isOver) setTimeout(() => { unanswered -= 1; }, PAUSE_MS / 2); isOver = true; };
  };
  const ask = window.fetch;
  window.fetch = (address, options) => {
    const answer = ask.call(window, address, options);
    if (!String(address).includes("_dash-update-component")) return answer;
    const over = waiting();
    answer.then((one) => one.clone().text()).then(over, over);
    return answer;
  };
  const LONGEST_MS = 3000;

  // The first move counts at once, further ones at most every PAUSE_MS, the last one always.
  const pending = new Map();
  const send = (id) => {
    const wanted = pending.get(id);
    if (wanted.value === wanted.sent) { pending.delete(id); if (!drag.isOn()) drag.atRest(); return; }
    if (unanswered && performance.now() - wanted.at < LONGEST_MS) { setTimeout(() => send(id), PAUSE_MS / 3); return; }
    wanted.at = performance.now();
    wanted.sent = wanted.value;
    wanted.times += 1;
    dash_clientside.set_props(id, {value: String(wanted.value)});
    setTimeout(() => send(id), PAUSE_MS);
  };
  document.addEventListener("input", (event) => {
    const box = event.target.closest?.(".track");
    if (!box) return;
    const id = event.target.id.replace(/-slider$/, "");
    const value = valueAt(box, Number(event.target.value));
    if (pending.has(id)) pending.get(id).value = value;
    else { pending.set(id, {value, sent: null, times: 0, at: -Infinity}); send(id); }
  }, true);
  const drag = {isOn: () => [...pending.values()].some((one) => one.times > 1), atRest: () => {}};
  window.gnomon = {drag, waiting}; // For live.js.

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

  // The browser's own lists: what is chosen goes to the hidden input that callbacks read, and back.
  document.addEventListener("change", (event) => {
    if (!event.target.matches?.("select.choice")) return;
    dash_clientside.set_props(event.target.id.replace(/-select$/, ""), {value: event.target.value});
  }, true);
  const choose = (select, value, tries = 3) => {
    select.value = value;
    if (select.value === value) return;
    if (tries) requestAnimationFrame(() => choose(select, value, tries - 1)); // Its options may be on their way.
    else { select.add(new Option(value, value)); select.value = value; }
  };
  const show = (id, value) => {
    const text = asText(value), slider = sliderOf(id);
    if (slider) {
      slider.setAttribute("aria-label", slider.closest(".track").dataset.label);
      if (!pending.has(id) && text !== "" && Number(text) >= 0) {
        slider.value = positionOf(slider.closest(".track"), Number(text));
      }
    }
    const select = document.getElementById(`${id}-select`);
    if (select && select.value !== text) choose(select, text);
    const chosen = document.getElementById(`${id}-chosen`);
    if (chosen) chosen.textContent = !value?.length ? "none" : value.length > 3 ? `${value.length} chosen` : value.join(", ");
  };

  // Every state has a place in the history; what one gesture changes (a drag, typing: no second without a touch or a key)
  // takes one place, however late the page hears of it.
  const SETTLED_MS = 1000;
  let shown = null, restoring = false, gesture = 0, remembered = 0, touched = -Infinity;
  for (const kind of ["pointerdown", "keydown", "input", "change"]) {
    addEventListener(kind, (event) => {
      if (event.timeStamp - touched > SETTLED_MS) gesture += 1;
      touched = Math.max(touched, event.timeStamp);
    }, true);
  }
  const remember = (page, search) => {
    const here = location.pathname;
    if ((here !== page.path && here !== "/") || search === location.search) { shown = page; return; }
    const isNew = shown?.path === page.path && here === page.path && gesture !== remembered;
    remembered = gesture;
    shown = page;
    if (restoring) return;
    history[isNew ? "pushState" : "replaceState"](isNew ? {gnomon: true} : history.state, "", page.path + search);
  };
  addEventListener("popstate", (event) => {
    const page = shown;
    if (!page?.isLive || location.pathname !== page.path || !document.getElementById(`page-${page.path.slice(1)}`)) return;
    event.stopImmediatePropagation(); // Dash would lay out the whole page anew.
    const query = new URLSearchParams(location.search);
    restoring = true;
    for (const [name, usual] of Object.entries(page.defaults)) {
      const text = query.has(name) ? query.get(name) : usual;
      const isTick = usual === "on" || usual === "off";
      const value = isTick ? (text === "on" ? ["on"] : []) : text.split(",").filter(Boolean);
      dash_clientside.set_props(`${page.path.slice(1)}-${name}`, {value: page.kinds[name] === "list" ? value : text});
    }
    setTimeout(() => { restoring = false; remembered = -1; }, 50);
  }, true);

  // Light or dark: the system's choice until another is made here.
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("#theme")) return;
    const root = document.documentElement;
    const isDark = (root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    root.style.colorScheme = isDark ? "light" : "dark";
    try { localStorage.setItem("gnomon-theme", root.style.colorScheme); } catch { /* Private windows forget. */ }
  });

  // A settings panel that is higher than the window scrolls with the page until its end is seen, then stays. On a narrow
  // screen it is a sheet, closed at first.
  const wide = matchMedia("(min-width: 901px)");
  const place = () => {
    const panel = document.querySelector(".panel");
    if (!panel) return;
    if (wide.matches || panel.closest(".stacked")) panel.open = true;
    else if (!panel.dataset.seen) panel.open = false;
    panel.dataset.seen = "yes";
    const top = Math.min(64, innerHeight - panel.offsetHeight - 16);
    panel.style.top = wide.matches ? `${top}px` : "";
  };
  wide.addEventListener("change", () => { const one = document.querySelector(".panel"); if (one) delete one.dataset.seen; place(); });
  addEventListener("resize", place);
  // Ticks are plain ticks with a label: Dash calls them options of a list box, which they are not.
  const rename = () => {
    for (const one of document.querySelectorAll(".dash-options-list[role=listbox]")) {
      one.setAttribute("role", "group");
      one.setAttribute("aria-label", one.closest(".control")?.querySelector(".label, label")?.textContent || "Choices");
    }
    for (const one of document.querySelectorAll("label.dash-options-list-option[role], label.dash-options-list-option[aria-selected]")) {
      one.removeAttribute("role");
      one.removeAttribute("aria-selected");
    }
    for (const one of document.querySelectorAll("input[type=file]:not([aria-label])")) {
      one.setAttribute("aria-label", one.parentElement.textContent);
    }
  };
  // Plots over the same time share zoom and cursor.
  const share = () => {
    for (const one of document.querySelectorAll(".together .js-plotly-plot")) {
      if (one.isShared || !one.on) continue;
      one.isShared = true;
      const others = () => [...one.closest(".together").querySelectorAll(".js-plotly-plot")].filter((other) => other !== one && other.layout);
      one.on("plotly_relayout", (change) => {
        if (one.isFollowing) return;
        const low = change["xaxis.range[0]"], high = change["xaxis.range[1]"];
        const update = low !== undefined ? {"xaxis.range": [low, high]} : change["xaxis.autorange"] ? {"xaxis.autorange": true} : null;
        for (const other of update ? others() : []) {
          other.isFollowing = true;
          Plotly.relayout(other, update).then(() => { other.isFollowing = false; });
        }
      });
      one.on("plotly_hover", (event) => { if (event.event) for (const other of others()) Plotly.Fx.hover(other, [{xval: event.points[0].x}]); });
      one.on("plotly_unhover", (event) => { if (event.event) for (const other of others()) Plotly.Fx.unhover(other); });
    }
  };

  // What a message suggests is a press away.
  const suggest = () => {
    for (const message of document.querySelectorAll(".control > .message")) {
      const [, number, name] = message.textContent.match(/(\d+) would fit|Did you mean '([^']+)'/) || [];
      const box = message.parentElement, value = number || name;
      let button = box.querySelector(".apply");
      if (!value) { button?.remove(); continue; }
      if (!button) {
        button = Object.assign(document.createElement("button"), {type: "button", className: "button apply"});
        button.addEventListener("click", () => {
          dash_clientside.set_props(box.id.replace(/-box$/, ""), {value: button.dataset.value});
        });
        box.append(button);
      }
      button.dataset.value = value;
      button.textContent = `Use ${value}`;
    }
  };
  // HTML that the server has made (and escaped), as reports have it. Its links stay within the page, as Dash's do.
  const fill = () => {
    for (const one of document.querySelectorAll("[data-html]")) {
      if (one.filled !== one.dataset.html) one.innerHTML = one.filled = one.dataset.html;
    }
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.(".body td a[href^='/']");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    dash_clientside.set_props("address", {href: link.getAttribute("href")});
  });
  const sizes = new ResizeObserver(place);
  let isTidied = true;
  const tidy = () => {
    isTidied = true;
    fill();
    rename();
    share();
    suggest();
    // By a class: a rule with :has() is looked at again at every change of a plot.
    const page = document.querySelector(".page");
    page?.classList.toggle("mistaken", !!page.querySelector(".controls .message:not(:empty), .message.own:not(:empty)"));
    const panel = document.querySelector(".panel");
    if (!panel || panel.dataset.watched) return;
    panel.dataset.watched = "yes";
    sizes.observe(panel);
    place();
  };
  new MutationObserver(() => { // Once for all changes of a moment.
    if (isTidied) setTimeout(tidy);
    isTidied = false;
  }).observe(document.documentElement, {childList: true, subtree: true, attributeFilter: ["aria-selected", "data-html"]});

  // A report in a frame is as high as its content: one thing scrolls, not two.
  addEventListener("message", (event) => {
    const height = Number(event.data?.gnomonHeight);
    const frame = [...document.querySelectorAll("iframe.report")].find((one) => one.contentWindow === event.source);
    if (frame && height > 0) frame.style.height = `${Math.min(height, 20000) + 2}px`;
  });

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    gnomon: {
      // Put what differs from the defaults into the address, and every slider and list where its value is.
      address(page, names, values) {
        const query = new URLSearchParams();
        names.forEach((name, i) => {
          const ticks = page.defaults[name] === "on" || page.defaults[name] === "off";
          const text = ticks ? (asText(values[i]) ? "on" : "off") : asText(values[i]);
          if (text !== page.defaults[name]) query.set(name, text);
          show(`${page.path.slice(1)}-${name}`, values[i]);
        });
        const search = query.toString() ? `?${query}` : "";
        remember(page, search);
        return search;
      },
    },
  });
})();
