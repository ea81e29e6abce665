// Reads out the plots where somebody points. The page says everything else without it.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("readings").textContent);
  const timeline = document.getElementById("timeline");
  const readout = document.getElementById("readout");
  const names = ["answered", "denied", "refused", "unknown", "unexpected", "delivered", "repeated"];
  let held = false;

  const clock = (us) => {
    const minutes = Math.floor(us / 6e7);
    return minutes + ":" + (us / 1e6 - minutes * 60).toFixed(2).padStart(5, "0");
  };
  const duration = (us) =>
    us < 1e3 ? us + " µs" : us < 1e6 ? (us / 1e3).toPrecision(3) + " ms" : (us / 1e6).toPrecision(3) + " s";
  const add = (name, value) => {
    const span = document.createElement("span");
    const bold = document.createElement("b");
    bold.textContent = value;
    span.append(name + " ", bold);
    readout.append(span);
  };

  const show = (us) => {
    timeline.classList.add("pointed");
    timeline.style.setProperty("--at", us / data.end_us);
    readout.hidden = false;
    readout.replaceChildren();
    add("at", clock(us) + " = " + (us / 1e6).toFixed(2) + " s");
    const [counts, latency] = data.steps[Math.min(Math.floor(us / data.step_us), data.steps.length - 1)];
    counts.forEach((count, i) => {
      if (count > 0) add(names[i], (count * 1e6 / data.step_us).toFixed(count * 1e6 < data.step_us * 10 ? 1 : 0) + "/s");
    });
    if (latency) add("median, 99 %, worst", latency.map(duration).join(", "));
    const leaders = Object.entries(data.leaders).map(([shard, reigns]) => {
      const reign = reigns.filter(([from]) => from <= us).pop();
      return shard + "→" + (reign && reign[1] !== null ? reign[1] : "–");
    });
    if (leaders.length) add("leaders", leaders.join(" "));
    const nemeses = data.nemeses.filter(([from, until]) => from <= us && us <= until);
    nemeses.forEach(([, , name, target]) => add(name, target));
  };
  const hide = () => {
    timeline.classList.remove("pointed");
    readout.hidden = true;
  };
  const pointed = (event) => {
    const area = event.target.closest(".area");
    if (!area) return null;
    const box = area.getBoundingClientRect();
    return Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1) * data.end_us;
  };

  timeline.addEventListener("pointermove", (event) => {
    if (held) return;
    const us = pointed(event);
    us === null ? hide() : show(us);
  });
  timeline.addEventListener("pointerleave", () => held || hide());
  timeline.addEventListener("click", (event) => {
    const us = pointed(event);
    if (us === null) return;
    held = !held;
    show(us);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    held = false;
    hide();
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-at]");
    if (!link) return;
    held = true;
    show(Number(link.dataset.at));
  });
})();
