// The decision again, by the reader's criteria: the rule of analysis/decision, in the browser.
// A table of cases and planted studies in the tests hold both to the same answers.
(() => {
  "use strict";

  // ---- the sentences: decision/sentences.py ----------------------------------------------------

  const grouped = (digits) => digits.replace(/\B(?=(\d{3})+$)/g, ",");
  // halves go to the even neighbor, as Python has them
  const places = (value, number = 2) => {
    let shown = value;
    if ((Math.abs(value) * 2 ** (number + 1)) % 2 === 1) {
      const below = Math.floor(value * 10 ** number);
      shown = (below % 2 === 0 ? below : below + 1) / 10 ** number;
    }
    const [whole, part] = shown.toFixed(number).split(".");
    return grouped(whole) + (part ? `.${part}` : "");
  };
  const exact = (value) => {
    const [whole, part] = String(Number(value.toPrecision(10))).split(".");
    return grouped(whole) + (part ? `.${part}` : "");
  };
  const three = (value) =>
    places(value, Math.abs(value) >= 99.95 || value === 0 ? 0 : 2 - Math.floor(Math.log10(Math.abs(value))));
  const ratio = (value) => places(value, value < 10 ? 2 : value < 100 ? 1 : 0);
  const FORMS = { ratio, places, three, exact };

  const sentence = (facts, name, values = {}) =>
    facts.sentences[name].replace(/\{(\w+):?(\w*)\}/g, (_, key, form) => {
      const value = key === "noun" ? facts.nouns[0] : values[key];
      if (form === "count") return `${value} ${facts.nouns[value === 1 ? 0 : 1]}`;
      return form ? FORMS[form](value) : value;
    });

  // a value and its limit, in as many digits as tell them apart
  const distinct = (value, limit) => {
    for (let number = 2; number < 7; number += 1) {
      const texts = [places(value, number), places(limit, number)];
      const same = Math.abs(Number(texts[1]) - limit) <= 1e-9 * Math.max(Math.abs(limit), Number(texts[1]));
      if (texts[0] !== texts[1] && same) return texts;
    }
    return [places(value), exact(limit)];
  };

  // ---- the rule: decision/walk.py and decision/choice.py ---------------------------------------

  const CRITERIA = ["min_efficiency", "deadline_minutes", "max_device_hours"];
  const rows = (columns, values) =>
    values.map((row) => Object.fromEntries(columns.map((column, index) => [column, row[index]])));
  const given = (rule, name) => rule[name] !== null && rule[name] !== undefined;
  const withoutCriterion = (rule) => !CRITERIA.some((name) => given(rule, name));
  const isShown = (facts, atLeast, threshold) => atLeast > threshold * (1 + facts.rounding);
  const verdict = (facts, pair, threshold) => {
    if (isShown(facts, pair.at_least, threshold)) return "shown";
    return pair.at_most < threshold * (1 - facts.rounding) ? "not worth it" : "open";
  };

  const missed = (facts, point, rule) =>
    Object.entries(facts.criteria).filter(([name, quantity]) => {
      const value = point[quantity], limit = rule[name];
      if (!given(rule, name)) return false;
      if (value === null) return true;
      return name === "min_efficiency" ? value < limit - facts.rounding : value > limit + facts.rounding;
    });

  const missText = (facts, point, rule, [name, quantity]) => {
    const value = point[quantity], limit = rule[name];
    if (value === null) return sentence(facts, `unknown ${name}`);
    const [shown, least] = distinct(value, limit);
    const of = facts.to_target ? facts.sentences["to the target"] : "";
    const queue = point.queue_minutes ? facts.sentences["in the queue"] : "";
    return sentence(facts, `missed ${name}`, { value, limit, distinct: shown, least, of, queue });
  };

  const evaluate = (facts, rule) =>
    rows(facts.point_columns, facts.points).map((point) => {
      point.queue_minutes = rule.queue_minutes ?? facts.queue_minutes[point.devices] ?? 0;
      point.done_minutes = point.longest_seconds === null ? null : point.longest_seconds / 60 + point.queue_minutes;
      point.missed = missed(facts, point, rule);
      point.misses = point.missed.map((criterion) => missText(facts, point, rule, criterion));
      if (point.unreliable) point.misses.unshift(point.unreliable);
      return point;
    });

  // the point of a series, and what the runs do not show of it
  const choose = (facts, points, rule, between) => {
    const met = points.filter((point) => !point.misses.length);
    if (!met.length) return null;
    if (given(rule, "deadline_minutes")) return { point: met[0], open: [] };
    const over = (more, fewer) => between(more.series, more.devices, fewer.series, fewer.devices);
    const worth = 1 + rule.min_gain;
    const worthIt = (more, fewer) => {
      const pair = over(more, fewer);
      const found = pair ? verdict(facts, pair, worth) : "open";
      // if more runs fail to reach the target, their time rests on luck
      return found === "shown" && facts.to_target && more.share_reached < fewer.share_reached ? "open" : found;
    };
    const steps = [];
    for (const point of met) if (!steps.length || worthIt(point, steps.at(-1)) === "shown") steps.push(point);
    const last = steps.at(-1), knee = withoutCriterion(rule);
    const best = knee ? steps.reduce((top, point) => (point.power > top.power ? point : top)) : last;
    const open = [];
    const ask = (kind, point, than, pair, threshold) => {
      if (pair) open.push({ kind, devices: point.devices, than, pair, threshold });
    };
    for (const point of met)
      if (best === last && point.devices > best.devices && worthIt(point, best) === "open")
        ask("more", point, best.devices, over(point, best), worth);
    for (const point of met)
      if (point.devices < best.devices && !steps.includes(point) && worthIt(best, point) !== "shown")
        ask("fewer", point, best.devices, over(best, point), worth);
    for (const point of knee ? met : []) {
      const [fewer, more] = point.devices < best.devices ? [point, best] : [best, point];
      const pair = over(more, fewer), threshold = Math.sqrt(more.devices / fewer.devices);
      if (pair && verdict(facts, pair, threshold) === "open") ask("knee", point, best.devices, pair, threshold);
    }
    if (given(rule, "min_efficiency")) {
      const [series, base] = facts.best;
      for (const point of points.filter(({ devices }) => devices >= best.devices)) {
        const pair = between(point.series, point.devices, series, base);
        if (!pair) continue;
        const threshold = (rule.min_efficiency * point.devices) / base;
        const found = verdict(facts, pair, threshold * (1 - 2 * facts.rounding));
        const efficient = point.efficiency_to_best >= rule.min_efficiency - facts.rounding;
        if (point === best ? found !== "shown" : !efficient && ![found, worthIt(point, best)].includes("not worth it"))
          ask(point === best ? "efficient" : "inefficient", point, base, pair, threshold);
      }
    }
    const gain = between(best.series, best.devices, best.series, best.gain_base);
    if (gain && gain.at_most > facts.known_within * gain.at_least)
      ask("gain", best, best.gain_base, gain, facts.known_within);
    return { point: best, open };
  };

  // decision/selection.py
  const isBetter = (facts, point, own, rule, between) => {
    if (point.devices === own.devices) return point.faster;
    const pair = between(point.series, point.devices, own.series, own.devices);
    if (!pair || pair.n < facts.enough) return false;
    if (withoutCriterion(rule)) return isShown(facts, pair.at_least, Math.sqrt(point.devices / own.devices));
    const worth = 1 + rule.min_gain;
    if (point.devices > own.devices) return isShown(facts, pair.at_least, worth);
    return point.faster && !isShown(facts, 1 / pair.at_most, worth);
  };
  // points of other series that are better by the means, the best first
  const findRivals = (facts, points, best, rule, between) => {
    if (given(rule, "deadline_minutes")) return [];
    const worth = 1 + rule.min_gain;
    const least = (devices) =>
      withoutCriterion(rule) ? worth * Math.sqrt(devices) : devices >= 1 ? worth : 1 / worth;
    return points
      .filter((point) => point.series !== best.series && !point.misses.length)
      .map((point) => ({ point, pair: between(point.series, point.devices, best.series, best.devices) }))
      .filter(({ point, pair }) => pair && pair.estimate > least(point.devices / best.devices))
      .sort((one, other) => other.pair.estimate - one.pair.estimate);
  };
  // points that miss a criterion, and are not shown to
  const findOpenExclusions = (facts, points, best, rule, between) =>
    points.filter((point) => {
      const names = point.missed.map(([name]) => name);
      if (!mayMeet(facts, point, rule, names)) return false;
      if (!best) return true;
      if (point.series === best.series && names.join() === "min_efficiency") return false;
      if (given(rule, "deadline_minutes"))
        return point.devices < best.devices && !mayBeInTime(facts, point, rule);
      const pair = between(point.series, point.devices, best.series, best.devices);
      return point.devices > best.devices && pair && verdict(facts, pair, 1 + rule.min_gain) !== "not worth it";
    });
  const mayMeet = (facts, point, rule, names) => {
    const reaches = {
      deadline_minutes: mayBeInTime(facts, point, rule),
      min_efficiency: point.efficiency_high !== null && point.efficiency_high >= rule.min_efficiency - facts.rounding,
      max_device_hours:
        point.device_hours !== null &&
        (point.device_hours * point.least_seconds) / point.wall_seconds <= rule.max_device_hours + facts.rounding,
    };
    return names.length > 0 && !point.unreliable && names.every((name) => reaches[name]);
  };

  // the first series, unless another is shown to be better
  const chooseSeries = (facts, choices, rule, between) => {
    if (given(rule, "deadline_minutes")) {
      const fewest = Math.min(...choices.map(({ point }) => point.devices));
      choices = choices.filter(({ point }) => point.devices === fewest);
    }
    const own = choices.find(({ point }) => point.series === facts.first);
    const better = own
      ? choices.filter((each) => each !== own && isBetter(facts, each.point, own.point, rule, between))
      : choices;
    if (!better.length) return own;
    return better.reduce((top, each) => ((each.point.speed ?? -Infinity) > (top.point.speed ?? -Infinity) ? each : top));
  };

  // the point to name if none meets the rule: the first done, or the cheapest
  const closest = (points, rule) => {
    const key = given(rule, "deadline_minutes") ? "done_minutes" : "device_hours";
    const order = (one, other) => (one[key] ?? Infinity) - (other[key] ?? Infinity) || one.devices - other.devices;
    return [...points].sort((one, other) => order(one, other) || 0)[0];
  };

  const meanMinutes = (point) => point.wall_seconds / 60 + point.queue_minutes;
  const mayBeInTime = (facts, point, rule) => {
    if (!given(rule, "deadline_minutes") || point.wall_seconds === null || point.done_minutes === null) return false;
    const latest = rule.deadline_minutes + facts.rounding;
    return point.least_seconds / 60 + point.queue_minutes <= latest && latest < point.done_minutes;
  };
  // device-hours that a further run may take; null if they are allowed or unknown
  const mayExceed = (facts, point, rule) => {
    if (!given(rule, "max_device_hours") || !point.wall_seconds || point.longest_seconds === null) return null;
    const hours = (point.device_hours * point.longest_seconds) / point.wall_seconds;
    return hours > rule.max_device_hours + facts.rounding ? hours : null;
  };

  // rule: min_efficiency, deadline_minutes, max_device_hours (null: not required), min_gain, and
  // queue_minutes for every device count (null: as the site has them)
  const decide = (facts, required) => {
    const rule = { ...required };
    let judged = true;
    if (!facts.whole_runs) {
      judged = !given(rule, "deadline_minutes") && !given(rule, "max_device_hours");
      rule.deadline_minutes = rule.max_device_hours = null;
    }
    const known = new Map(
      rows(facts.pair_columns, facts.pairs).map((pair) =>
        [[pair.series, pair.devices, pair.than_series, pair.than_devices].join(), pair]),
    );
    const between = (...pair) => known.get(pair.join());
    const points = evaluate(facts, rule);
    const bySeries = facts.names.map((_, index) => points.filter(({ series }) => series === index));
    const choices = bySeries.map((own) => choose(facts, own, rule, between)).filter(Boolean);
    const chosen = choices.length ? chooseSeries(facts, choices, rule, between) : null;
    const best = chosen ? chosen.point : null, open = chosen ? chosen.open : [];
    const shown = best ?? closest(points, rule);
    const series = points.filter((point) => point.series === shown.series);
    const late = series.filter((point) => (!best || point.devices < best.devices) && mayBeInTime(facts, point, rule));
    const hours = best && mayExceed(facts, best, rule);
    const doubts = [...facts.doubts, ...facts.series_doubts[shown.series]];
    const fewest = Math.min(...(best && facts.chooses_devices ? [best] : series).map(({ runs }) => runs));
    const rivals = best ? findRivals(facts, points, best, rule, between) : [];
    const excluded = findOpenExclusions(facts, points, best, rule, between);
    return {
      devices: best && best.devices,
      series: facts.names[shown.series],
      clear: best !== null && judged && !open.length && !late.length && hours === null && fewest >= facts.enough &&
        !doubts.length && !rivals.length && !excluded.length && !best.doubtful,
      rule, points: series, best, shown, open, late, hours, fewest, doubts, rivals, excluded,
    };
  };

  // ---- in words: decision/card.py --------------------------------------------------------------

  const openText = (facts, { kind, devices, than, pair, threshold }) => {
    const fewer = Math.min(devices, than), more = Math.max(devices, than);
    const share = kind === "efficient" || kind === "inefficient" ? fewer / more : 1;
    const ofShare = kind === "efficient" || kind === "inefficient";
    const form = (value) => (ofShare ? places(value * share) : ratio(value)) + (kind === "gain" ? "x" : "");
    const few = pair.n < facts.enough;
    return sentence(facts, kind, {
      devices, fewer, more,
      bounds: few ? `about ${form(pair.estimate)}` : `${form(pair.at_least)} to ${form(pair.at_most)}`,
      least: distinct(pair.estimate * share, threshold * share)[1],
      to: facts.to_target ? facts.sentences["to the target"] : "",
    });
  };

  const reasonsAgainst = (facts, point, best, rule) => {
    if (point.misses.length) return point.misses;
    if (point.gain <= best.gain) return [sentence(facts, "no gain", { devices: best.devices })];
    if (withoutCriterion(rule) && point.power <= best.power) return [sentence(facts, "worse balance")];
    return [sentence(facts, "not faster", { gain: 100 * rule.min_gain, devices: best.devices })];
  };

  const intervalText = (facts, { gain_low: low, gain_high: high }) =>
    low === null ? "" : sentence(facts, "interval", { low, high });

  const nextText = (facts, { best, points, rule }) => {
    if (given(rule, "deadline_minutes")) {
      const point = points.filter(({ devices }) => devices < best.devices).at(-1);
      if (!point) return sentence(facts, "none smaller");
      const late = mayBeInTime(facts, point, rule);
      return sentence(facts, late ? "next smaller late" : "next smaller", {
        devices: point.devices,
        minutes: late ? point.done_minutes : meanMinutes(point),
        queue: point.queue_minutes ? sentence(facts, "waits", { wait: point.queue_minutes }) : "",
      });
    }
    const point = points.find(({ devices }) => devices > best.devices);
    if (!point) return sentence(facts, "none larger");
    const reasons = reasonsAgainst(facts, point, best, rule);
    const named = reasons.some((reason) => reason.startsWith("efficiency"));
    return sentence(facts, "next", {
      devices: point.devices,
      gain: point.gain,
      to: facts.to_target ? facts.sentences["to the target"] : "",
      base: point.gain_base,
      interval: intervalText(facts, point),
      efficiency: named ? "" : sentence(facts, "at efficiency", { efficiency: point.efficiency_to_best }),
      reasons: reasons.join(", and "),
    });
  };

  // the verdict of the card, and the sentences below it
  const describe = (facts, result) => {
    const { best, shown, points, rule } = result;
    if (!best) {
      const where = sentence(facts, "where", { devices: shown.devices, of: facts.of[shown.series] });
      const reason = sentence(facts, "closest", { where, misses: shown.misses.join(", and ") });
      return { verdict: sentence(facts, "none meets"), notes: [reason, ...result.doubts] };
    }
    let said = sentence(facts, "use", { devices: best.devices, options: facts.with[best.series] });
    if (best === points[0] && points.length > 1 && !given(rule, "deadline_minutes"))
      said = sentence(facts, result.clear ? "more do not pay" : "more are not shown to pay", { use: said });
    const notes = [
      nextText(facts, result),
      ...result.open.map((question) => openText(facts, question)),
      ...result.late.map(({ devices }) => sentence(facts, "in time", { devices })),
      ...(result.hours === null ? [] : [sentence(facts, "hours", { hours: result.hours })]),
      ...result.rivals.slice(0, 1).map(({ point, pair }) =>
        sentence(facts, "rival", {
          where: sentence(facts, "where", { devices: point.devices, of: facts.of[point.series] }),
          ratio: pair.estimate,
          to: facts.to_target ? facts.sentences["to the target"] : "",
        })),
      ...result.excluded.map((point) => {
        const where = sentence(facts, "where", { devices: point.devices, of: facts.of[point.series] });
        return sentence(facts, "may meet", { where, misses: point.misses.join(", and ") });
      }),
      ...(result.fewest < facts.enough ? [sentence(facts, result.fewest < 2 ? "single" : "few")] : []),
      ...best.notes,
      ...result.doubts,
    ];
    return { verdict: said, notes };
  };

  globalThis.scalewiseWhatIf = { decide, describe };

  // ---- the fields ------------------------------------------------------------------------------

  const MOST = 1e9;
  // what a field may hold, and how it is called in a sentence
  const FIELDS = {
    min_efficiency: { above: 0, most: 1, what: "the efficiency required" },
    deadline_minutes: { above: 0, most: MOST, what: "the deadline" },
    max_device_hours: { above: 0, most: MOST, what: "the most device-hours" },
    min_gain: { least: 0, most: 100, what: "the least gain" },
    queue_minutes: { least: 0, most: MOST, what: "the wait in the queue", optional: true },
    price: { least: 0, most: MOST, what: "the price", optional: true },
  };

  // [value, problem]: null for an empty field that may be empty
  const readField = (input, { above, least, most, what, optional }) => {
    const start = what[0].toUpperCase() + what.slice(1);
    if (input.validity.badInput) return [null, `${start} must be a number.`];
    if (input.value.trim() === "") return optional ? [null, ""] : [null, `Give ${what}.`];
    const value = Number(input.value);
    if (!Number.isFinite(value)) return [null, `${start} must be a number.`];
    if (above !== undefined && value <= above) return [null, `${start} must be above ${above}.`];
    if (least !== undefined && value < least) return [null, `${start} must be ${least} or more.`];
    if (value > most) return [null, `${start} must be at most ${exact(most)}.`];
    // a smaller value is a slip, and would be shown as 0
    if (value !== 0 && value < 1e-6) return [null, `${start} must be 0.000001 or more.`];
    return [value, ""];
  };

  const element = (tag, text, attributes = {}) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };

  // a part of an address as text; unchanged if a browser does not write such a one
  const plain = (part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };

  const wire = async (section) => {
    const facts = (await scalewiseData).get(section.dataset.experiment)?.what_if;
    if (!facts || facts.left_out) return;
    const form = section.querySelector("form");
    const output = section.querySelector(".what-if-answer");
    const [verdictLine, further] = output.children;
    // read out when it has become another one, not at every step of the slider
    const say = (text, notes, problem) => {
      if (verdictLine.textContent !== text) verdictLine.textContent = text;
      verdictLine.className = problem ? "problem" : "sentence";
      further.replaceChildren(...notes.map((note) => element("p", note)));
    };
    const body = section.querySelector(".what-if-counts tbody");
    const link = section.querySelector(".what-if-link");
    const field = (name) => form.querySelector(`[name="${name}"]`);
    const tick = (name) => form.querySelector(`[name="criterion"][value="${name}"]`);
    const slider = form.querySelector("[data-slider]");
    const names = [...Object.keys(FIELDS), "currency"];

    const read = () => {
      const values = {}, problems = [];
      for (const [name, limits] of Object.entries(FIELDS)) {
        const input = field(name), required = CRITERIA.includes(name) ? tick(name).checked : true;
        const [value, problem] = required && !input.disabled ? readField(input, limits) : [null, ""];
        values[name] = value;
        const note = document.getElementById(input.getAttribute("aria-describedby"));
        note.textContent = problem;
        if (problem) input.setAttribute("aria-invalid", "true");
        else input.removeAttribute("aria-invalid");
        if (problem) problems.push(problem);
      }
      const rule = { ...values, min_gain: values.min_gain / 100 };
      return { rule, price: values.price, currency: field("currency").value.trim(), problems };
    };

    const showCounts = (result, price, currency) => {
      const known = (value, text = three) => (value === null ? "–" : text(value));
      const cost = (hours) => `${three(hours * price)}${currency ? ` ${currency}` : ""}`;
      const why = (point) => {
        if (!result.best) return point.misses.join(", and ");
        if (point === result.best) return "chosen";
        if (!point.misses.length && point.devices < result.best.devices) return `slower than ${result.best.devices}`;
        if (!point.misses.length && given(result.rule, "deadline_minutes")) return "more than the deadline needs";
        return reasonsAgainst(facts, point, result.best, result.rule).join(", and ");
      };
      section.querySelector(".what-if-cost").hidden = price === null;
      body.replaceChildren(
        ...result.points.map((point) => {
          const row = element("tr");
          if (point === result.best) row.className = "chosen";
          const cells = [
            `${ratio(point.gain)}x`,
            places(point.efficiency_to_best),
            known(point.done_minutes),
            known(point.device_hours),
            ...(price === null ? [] : [known(point.device_hours, cost)]),
          ];
          row.append(element("th", String(point.devices), { scope: "row" }), ...cells.map((text) => element("td", text)));
          // of the baseline itself there is none
          const interval = point.devices === point.gain_base ? "" : intervalText(facts, point).trim();
          if (interval) row.cells[1].append(element("small", interval));
          row.append(element("td", why(point), { class: "reason" }));
          return row;
        }),
      );
      section.querySelector(".what-if-counts caption").textContent =
        `Every ${facts.nouns[0]} count${facts.of[result.shown.series]} under these criteria. Speedups have 95 % intervals; 95 % of runs are done within the time given.`;
    };

    const update = () => {
      const { rule, price, currency, problems } = read();
      slider.value = rule.min_efficiency ?? slider.value;
      section.querySelector(".what-if-counts").hidden = problems.length > 0;
      if (problems.length) {
        say(`Not decided again. ${problems.join(" ")}`, [], true);
        return;
      }
      const result = decide(facts, rule);
      const { verdict: said, notes } = describe(facts, result);
      const same = result.devices === facts.own.devices && result.series === facts.own.series;
      say(said, [...notes, same ? "The study has the same answer." : `The study’s own answer: ${facts.own.verdict}`, ...facts.notes], false);
      output.dataset.devices = result.devices ?? "";
      output.dataset.series = result.series;
      showCounts(result, price, currency);
      const values = new URLSearchParams(CRITERIA.filter((name) => tick(name).checked).map((name) => ["criterion", name]));
      for (const name of names) if (field(name).value !== field(name).defaultValue) values.append(name, field(name).value);
      link.href = `#${section.id}?${values}`;
    };

    // #experiment.what-if?criterion=min_efficiency&min_efficiency=0.6
    const fromLink = () => {
      const [id, query] = location.hash.slice(1).split("?");
      if (plain(id) !== section.id || query === undefined) return;
      const values = new URLSearchParams(query);
      form.reset();
      for (const name of CRITERIA) tick(name).checked = values.getAll("criterion").includes(name) && !tick(name).disabled;
      for (const name of names) if (values.has(name)) field(name).value = values.get(name);
      update();
      section.scrollIntoView();
    };

    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(update));
    form.addEventListener("input", ({ target }) => {
      // a criterion that gets a value counts
      if (target === slider) field("min_efficiency").value = slider.value;
      const name = target === slider ? "min_efficiency" : target.name;
      if (CRITERIA.includes(name)) tick(name).checked = true;
      update();
    });
    globalThis.addEventListener("hashchange", fromLink);
    section.hidden = false;
    update();
    fromLink();
  };

  if (globalThis.document) document.querySelectorAll(".what-if").forEach(wire);
})();
