// Draws the charts, sorts and filters the tables, and moves the cursor over the memory timeline.
// Text from models reaches the page as textContent only.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children);
    return made;
  }

  // --- light and dark ---------------------------------------------------------------------------

  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (prefersDark.matches ? "dark" : "light")) === "dark";
  const showTheme = () => { document.getElementById("theme-name").textContent = isDark() ? "Light" : "Dark"; };
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("poet-theme", root.dataset.theme); } catch { /* not remembered */ }
    showTheme();
  });
  prefersDark.addEventListener("change", showTheme);
  showTheme();

  // --- charts -----------------------------------------------------------------------------------

  const sans = getComputedStyle(root).getPropertyValue("--sans");
  const config = {
    background: null,
    font: sans,
    view: { stroke: null },
    axis: {
      labelColor: "var(--muted)", titleColor: "var(--muted)", gridColor: "var(--line)", domainColor: "var(--line)",
      tickColor: "var(--line)", labelFontSize: 12, titleFontSize: 12, titleFontWeight: 400, gridOpacity: 0.8,
    },
    legend: { labelColor: "var(--ink)", titleColor: "var(--muted)", labelFontSize: 12, symbolSize: 80 },
  };
  const options = {
    renderer: "svg", actions: false, defaultStyle: false, config,
    tooltip: { disableDefaultStyle: true },
  };
  const narrow = () => innerWidth < 560;

  function draw(place) {
    const spec = data.charts[place.dataset.chart];
    if (!spec) return Promise.resolve(null);
    const fitted = structuredClone(spec);
    const below = { top: { direction: "vertical", anchor: "start", margin: 4 } }; // one legend below the other
    fitted.config = narrow()
      ? { axisY: { labelLimit: 108 }, legend: { columns: 1, layout: below } }
      : { legend: { columns: 4 } };
    return vegaEmbed(place, fitted, options).then((result) => {
      place.dataset.drawn = "yes";
      return result.view;
    });
  }

  // --- tables -----------------------------------------------------------------------------------

  const PAGE_ROWS = 25;
  const NOTHING = "\u2013"; // as the tables write it
  const text = (cell) => (Array.isArray(cell) ? cell[1] : cell);
  const order = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

  function compare(a, b, numeric) {
    if (!numeric) return order.compare(a, b);
    if (a[0] === null || b[0] === null) return (a[0] === null) - (b[0] === null) || 0;
    return a[0] - b[0];
  }

  function table(place) {
    const { columns, rows, sort, noun } = data.tables[place.dataset.table];
    const name = place.getAttribute("aria-label");
    const state = { sort, down: true, shown: PAGE_ROWS, words: "", choices: new Map() };
    const body = element("tbody");
    const tally = element("p", { class: "tally", "aria-live": "polite" });
    const more = element("button", { type: "button", class: "more", onclick: () => { state.shown *= 4; show(); } });
    const search = element("input", {
      type: "search", placeholder: `find ${noun}`, "aria-label": `find ${noun}`,
      oninput: () => { state.words = search.value.toLowerCase(); state.shown = PAGE_ROWS; show(); },
    });
    const filters = element("div", { class: "filters" }, search);
    columns.forEach((column, index) => {
      if (!column.choice) return;
      const values = Array.from(new Set(rows.map((row) => text(row[index])))).sort(order.compare);
      if (values.length < 2) return;
      filters.append(element(
        "select",
        {
          "aria-label": column.heading, "data-column": index,
          onchange: (event) => {
            const chosen = event.target.selectedIndex - 1;
            if (chosen < 0) state.choices.delete(index); else state.choices.set(index, values[chosen]);
            state.shown = PAGE_ROWS;
            show();
          },
        },
        element("option", {}, `${column.heading}: any`),
        ...values.map((value) => element("option", {}, value)),
      ));
    });
    const shownColumns = columns.map((column, index) => ({ column, index }))
      .filter(({ column }) => !column.note && !column.hidden);
    const note = columns.findIndex((column) => column.note);
    const headings = shownColumns.map(({ column, index }) => element(
      "th", { class: column.numeric ? "num" : null, scope: "col" },
      element("button", {
        type: "button",
        onclick: () => {
          state.down = state.sort === index ? !state.down : column.numeric;
          state.sort = index;
          show();
        },
      }, column.heading),
    ));

    // Where nothing but a note is known of a row, the note has the room of the missing amounts.
    const lastKnown = (row) => shownColumns.findLastIndex(({ index }) => text(row[index]) !== NOTHING);
    const isUnsolved = (row) => note >= 0 && text(row[note]) && shownColumns.length - lastKnown(row) > 4;
    function cellsOf(row) {
      if (!isUnsolved(row)) return shownColumns;
      const known = shownColumns.slice(0, lastKnown(row) + 1);
      return [...known, { why: shownColumns.length - known.length }];
    }

    function show() {
      const wanted = rows.filter((row) =>
        Array.from(state.choices).every(([index, value]) => text(row[index]) === value)
        && (!state.words || row.some((cell) => text(cell).toLowerCase().includes(state.words))));
      if (state.sort !== null) {
        const { numeric } = columns[state.sort];
        wanted.sort((a, b) => (state.down ? -1 : 1) * compare(a[state.sort], b[state.sort], numeric));
      }
      headings.forEach((heading, position) => {
        if (shownColumns[position].index === state.sort) heading.setAttribute("aria-sort", state.down ? "descending" : "ascending");
        else heading.removeAttribute("aria-sort");
      });
      body.replaceChildren(...wanted.slice(0, state.shown).map((row) => element(
        "tr", {},
        ...cellsOf(row).map(({ column, index, why }) => {
          if (why) return element("td", { colspan: why, class: "why" }, text(row[note]));
          const kinds = [column.numeric && "num", text(row[index]) === NOTHING && "nothing"].filter(Boolean);
          const cell = element("td", { class: kinds.join(" ") || null, "data-label": column.heading });
          cell.append(column.code ? element("code", {}, text(row[index])) : text(row[index]));
          if (index === 0 && note >= 0 && text(row[note]) && !isUnsolved(row)) cell.append(element("p", { class: "why" }, text(row[note])));
          return cell;
        }),
      )));
      const shown = Math.min(state.shown, wanted.length);
      tally.textContent = `${shown} of ${wanted.length} ${noun}`
        + (wanted.length < rows.length ? `, filtered from ${rows.length}` : "");
      more.hidden = wanted.length <= state.shown;
      more.textContent = `show more ${noun}`;
    }
    if (rows.length > 12 || filters.children.length > 1) place.append(filters);
    place.append(
      element("div", { class: "scroll" },
        element("table", { "aria-label": name, class: "sorted" }, element("thead", {}, element("tr", {}, ...headings)), body)),
      tally, more);
    show();
  }

  // On a phone a row stands as a block: its cells need the names that the head would give them.
  function label(stack) {
    const names = all("thead th", stack).map((heading) => heading.textContent);
    for (const row of all("tbody tr", stack)) {
      Array.from(row.cells).forEach((cell, at) => { if (cell.colSpan === 1) cell.dataset.label = names[at]; });
    }
  }

  // --- the memory timeline ----------------------------------------------------------------------

  const MOST_COLUMNS = 900;
  const MOST_BUFFERS = 8;

  function timeline(place, line, views) {
    const count = line.what.length;
    const roles = line.roles.length;
    const held = line.roles.map(() => new Float64Array(count + 1)); // bytes by role and frame
    for (let at = 0; at < line.stays.length; at += 3) {
      const tensor = line.stays[at];
      held[line.role[tensor]][line.stays[at + 1]] += line.bytes[tensor];
      held[line.role[tensor]][line.stays[at + 2]] -= line.bytes[tensor];
    }
    const total = new Float64Array(count);
    for (const bytes of held) for (let frame = 1; frame < count; frame += 1) bytes[frame] += bytes[frame - 1];
    for (let frame = 0; frame < count; frame += 1) held[roles - 1][frame] += line.workspace[frame];
    for (const bytes of held) for (let frame = 0; frame < count; frame += 1) total[frame] += bytes[frame];

    let axis = "time";
    let part = [0, count];
    let cursor = 0;
    const from = (frame) => (axis === "step" ? frame : line.at[frame]);
    const to = (frame) => (frame + 1 < count ? from(frame + 1) : axis === "step" ? count : line.end);
    const peak = total.reduce((best, bytes, frame) => (bytes > total[best] ? frame : best), 0);

    // Frames that share a column of the chart are drawn as the fullest of them.
    function columns(first, last) {
      const groups = [];
      const start = from(first);
      const width = (to(last - 1) - start) / MOST_COLUMNS || 1;
      for (let frame = first; frame < last; frame += 1) {
        const group = groups.at(-1);
        if (group && last - first > MOST_COLUMNS && from(frame) - group.x < width) {
          if (total[frame] > total[group.frame]) group.frame = frame;
        } else groups.push({ x: from(frame), frame });
      }
      groups.push({ x: to(last - 1), frame: groups.at(-1).frame });
      return groups;
    }
    function stacked(first, last) {
      const rows = [];
      for (const { x, frame } of columns(first, last)) {
        let low = 0;
        line.roles.forEach((role, index) => {
          const high = low + held[index][frame] / line.factor;
          rows.push({ x, low, high, role: role.name });
          low = high;
        });
      }
      return rows;
    }
    const outline = () => columns(0, count).map(({ x, frame }) => ({ x, high: total[frame] / line.factor }));

    // what is in RAM at a frame, largest first
    function buffersAt(frame) {
      const present = new Map();
      for (let at = 0; at < line.stays.length; at += 3) {
        if (line.stays[at + 1] <= frame && frame < line.stays[at + 2]) {
          present.set(line.stays[at], (present.get(line.stays[at]) || 0) + 1);
        }
      }
      return Array.from(present, ([tensor, copies]) => ({ tensor, copies }))
        .sort((a, b) => line.bytes[b.tensor] * b.copies - line.bytes[a.tensor] * a.copies);
    }
    const prefixes = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];
    const amount = (bytes) => {
      const [unit, factor] = prefixes.find(([, least]) => bytes >= least) || ["B", 1];
      return `${Number((bytes / factor).toPrecision(4))} ${unit}`;
    };
    const swatch = (index) => {
      const made = element("span", { class: "swatch" });
      made.style.background = line.roles[index].colour;
      return made;
    };
    const now = place.querySelector("[data-now]");
    const legend = place.querySelector("[data-roles]");
    const buffers = place.querySelector("[data-buffers]");
    const scrub = place.querySelector("[data-scrub]");
    scrub.max = count - 1;

    function tell() {
      const verb = line.verbs[line.kind[cursor]];
      const when = `${Number(line.at[cursor].toPrecision(4))} ${line.secondsUnit}`;
      now.replaceChildren(
        element("strong", {}, amount(total[cursor])), line.budget ? ` of ${line.budgetText}` : "",
        ` at step ${cursor + 1} of ${count}, ${when}: ${verb} `, element("code", {}, line.names[line.what[cursor]]));
      legend.replaceChildren(...line.roles.map((role, index) => element(
        "li", { class: held[index][cursor] ? null : "zero" },
        swatch(index), element("span", {}, role.name), element("span", {}, amount(held[index][cursor])))).reverse());
      const present = buffersAt(cursor);
      const rest = present.slice(MOST_BUFFERS);
      const row = ({ tensor, copies }) => element(
        "li", { title: line.tensors[tensor] }, swatch(line.role[tensor]),
        element("span", { class: "name" }, line.tensors[tensor] + (copies > 1 ? " (twice)" : "")),
        element("span", { class: "muted" }, line.roles[line.role[tensor]].name),
        element("span", {}, amount(line.bytes[tensor] * copies)));
      buffers.replaceChildren(...present.slice(0, MOST_BUFFERS).map(row));
      if (line.workspace[cursor]) {
        buffers.prepend(element(
          "li", {}, swatch(roles - 1), element("span", { class: "name" }, "what the op itself needs"),
          element("span", { class: "muted" }, "workspace"), element("span", {}, amount(line.workspace[cursor]))));
      }
      if (rest.length) {
        const bytes = rest.reduce((sum, item) => sum + line.bytes[item.tensor] * item.copies, 0);
        buffers.append(element("li", {}, element("span"), element("span", { class: "muted" },
          `and ${rest.length} smaller ones`), element("span"), element("span", {}, amount(bytes))));
      }
    }
    function point(frame) {
      cursor = Math.max(0, Math.min(count - 1, frame));
      scrub.value = cursor;
      const middle = (from(cursor) + to(cursor)) / 2;
      views.memory.data("cursor", [{ x: middle }]).runAsync();
      tell();
    }
    const axisName = place.querySelector("[data-axis-name]");
    function redraw() {
      axisName.textContent = axis === "step" ? `steps, ${count} in all` : `${line.secondsUnit} from the start of the step`;
      views.memory.data("ram", stacked(...part)).runAsync();
      if (cursor < part[0] || cursor >= part[1]) cursor = part[0];
      point(cursor);
    }
    function frameAt(x) {
      let [low, high] = [part[0], part[1] - 1];
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (from(middle) <= x) low = middle; else high = middle - 1;
      }
      return low;
    }
    function follow(event) {
      const svg = views.memory.container().querySelector("svg");
      const x = event.clientX - svg.getBoundingClientRect().left - views.memory.origin()[0];
      point(frameAt(views.memory.scale("x").invert(x)));
    }
    views.memory.container().addEventListener("pointermove", follow);
    views.memory.container().addEventListener("pointerdown", follow);
    scrub.addEventListener("input", () => {
      const frame = Number(scrub.value);
      if (frame < part[0] || frame >= part[1]) { part = [0, count]; cursor = frame; redraw(); } else point(frame);
    });
    place.querySelector("[data-peak]").addEventListener("click", () => {
      if (peak < part[0] || peak >= part[1]) { part = [0, count]; redraw(); }
      point(peak);
    });
    for (const button of all("[data-axis]", place)) {
      button.addEventListener("click", () => {
        axis = button.dataset.axis;
        for (const other of all("[data-axis]", place)) other.setAttribute("aria-pressed", other === button);
        part = [0, count];
        if (views.strip) views.strip.data("ram", outline()).runAsync();
        redraw();
      });
    }
    if (views.strip) {
      views.strip.data("ram", outline()).runAsync();
      views.strip.addSignalListener("part", (_, chosen) => {
        const range = chosen && chosen.x;
        part = [0, count];
        if (range && range[1] > range[0]) {
          const first = frameAt(range[0]);
          part = [first, Math.max(first + 1, frameAt(range[1]) + 1)];
        }
        redraw();
      });
    }
    cursor = peak;
    redraw();
  }

  // --- downloads --------------------------------------------------------------------------------

  function download(button) {
    const kind = button.dataset.download;
    button.addEventListener("click", () => {
      const whole = data.downloads[kind];
      const content = typeof whole === "string" ? whole : `${JSON.stringify(whole, null, 1)}\n`;
      const type = kind === "csv" ? "text/csv" : "application/json";
      const address = URL.createObjectURL(new Blob([content], { type }));
      const link = element("a", { href: address, download: `what-if.${kind}` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(address), 1000);
    });
  }

  // --- all of it --------------------------------------------------------------------------------

  all("[data-table]").forEach(table);
  all("table.stack").forEach(label);
  all("[data-download]").forEach(download);
  Promise.all(all("[data-chart]").map((place) => draw(place).then((view) => [place.dataset.chart, view])))
    .then((drawn) => {
      const views = Object.fromEntries(drawn);
      if (data.timeline && views.memory) timeline(document.querySelector("[data-timeline]"), data.timeline, views);
      root.dataset.ready = "yes";
    });
})();
