// The decision again, by the reader's criteria: the rules of analysis/decision, in the browser.
// A table of cases in the tests holds both to the same answers; change one and the other must follow.
(() => {
  "use strict";

  // ---- statistics -------------------------------------------------------------------------------

  // the 95 % interval; null for single runs, whose scatter is not known
  const interval = (ratio) => (ratio.assumed ? null : [ratio.at_least, ratio.at_most]);

  const verdict = (facts, ratio, threshold) => {
    if (ratio.at_least > threshold * (1 + facts.rounding)) return "shown";
    return ratio.at_most < threshold * (1 - facts.rounding) ? "not worth it" : "open";
  };

  // p values of tests that are made together, by Holm; null for one that is not known
  const holm = (values) => {
    const known = values.map((p, index) => ({ p, index })).filter(({ p }) => p !== null);
    known.sort((one, other) => one.p - other.p);
    const adjusted = [...values];
    let least = 0;
    known.forEach(({ p, index }, rank) => {
      least = Math.max(least, Math.min(1, (known.length - rank) * p));
      adjusted[index] = least;
    });
    return adjusted;
  };

  // runs on each side that would tell, by tables of 2, 3, ... runs; null above those
  const runsNeeded = (facts, { kind, ratio, threshold }) => {
    const ofGain = kind === "gain";
    const distance = ofGain ? Math.log(threshold) / 2 : Math.abs(Math.log(ratio.estimate / threshold));
    const table = (ofGain ? facts.half_widths : facts.tellable_leads)[ratio.freedom_per_run - 1];
    const index = table.findIndex((each, at) => at + 2 > ratio.n && each * ratio.scatter <= distance);
    return index < 0 ? null : index + 2;
  };

  // ---- numbers in words: scalewise.analysis.formatting -----------------------------------------

  // as many places as asked for; halves go to the even neighbour, as Python has them
  const fixed = (value, places) => {
    let shown = value;
    if ((Math.abs(value) * 2 ** (places + 1)) % 2 === 1) {
      const below = Math.floor(value * 10 ** places);
      shown = (below % 2 === 0 ? below : below + 1) / 10 ** places;
    }
    const [whole, part] = shown.toFixed(places).split(".");
    return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (part ? `.${part}` : "");
  };
  const exact = (value) => {
    const [whole, part] = String(Number(value.toPrecision(10))).split(".");
    return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (part ? `.${part}` : "");
  };
  const threeDigits = (value) => {
    if (value === null) return "unknown";
    if (Math.abs(value) >= 99.95 || value === 0) return fixed(value, 0);
    return fixed(value, 2 - Math.floor(Math.log10(Math.abs(value))));
  };
  const ratioText = (value) => fixed(value, value < 10 ? 2 : value < 100 ? 1 : 0);
  const count = (devices) => `${devices} device${devices === 1 ? "" : "s"}`;
  const plural = (number, unit) => `${number} ${unit}${number === "1" ? "" : "s"}`;
  const distinct = (value, limit) => {
    for (let places = 2; places < 7; places += 1) {
      const texts = [fixed(value, places), fixed(limit, places)];
      const same = Math.abs(Number(texts[1]) - limit) <= 1e-9 * Math.max(Math.abs(limit), Number(texts[1]));
      if (texts[0] !== texts[1] && same) return texts;
    }
    return [fixed(value, 2), exact(limit)];
  };

  // ---- the criteria held against each point: decision/criteria.py ------------------------------

  const rows = (columns, values) =>
    values.map((row) => Object.fromEntries(columns.map((column, index) => [column, row[index]])));
  const missing = (value) => value === null || value === undefined;
  const withoutCriterion = (rule) =>
    [rule.min_efficiency, rule.deadline_minutes, rule.max_device_hours].every(missing);

  function* violations(facts, point, rule) {
    if (point.n_unsuccessful > 0) {
      const ended = point.n_unsuccessful + point.n;
      if (point.n / ended < facts.successful_from) yield `${point.unsuccessful} of ${ended} runs`;
    }
    const least = rule.min_efficiency, efficiency = point.gain_efficiency;
    if (!missing(least) && efficiency < least - facts.rounding) {
      const of = facts.measure === "time to target" ? " to the target" : "";
      const [shown, limit] = distinct(efficiency, least);
      yield `efficiency ${shown}${of}, below the ${limit} required`;
    }
    const deadline = rule.deadline_minutes, done = point.done_minutes;
    if (!missing(deadline) && done === null) yield "a run of unknown length";
    else if (!missing(deadline) && done > deadline + facts.rounding) {
      const queue = point.queue_minutes ? " in the queue and running" : "";
      yield `up to ${threeDigits(done)} minutes${queue}, more than the ${exact(deadline)} allowed`;
    }
    const most = rule.max_device_hours, hours = point.device_hours;
    if (!missing(most) && hours === null) yield "unknown device-hours";
    else if (!missing(most) && hours > most + facts.rounding) {
      yield `${threeDigits(hours)} device-hours, more than the ${exact(most)} allowed`;
    }
  }

  const evaluate = (facts, rule) => {
    return rows(facts.point_columns, facts.points).map((point) => {
      point.queue_minutes = rule.queue_minutes ?? facts.queue_minutes[point.devices] ?? 0;
      point.done_minutes = point.longest_seconds === null ? null : point.longest_seconds / 60 + point.queue_minutes;
      point.misses = [...violations(facts, point, rule)];
      return point;
    });
  };

  const shortcomings = (point) => [
    ...(point.outrun_by ? [`no gain over ${count(point.outrun_by)}`] : []),
    ...point.misses,
  ];

  // the point to name where none meets the rule: the first done, or the cheapest
  const closest = (points, rule) => {
    const key = missing(rule.deadline_minutes) ? "device_hours" : "done_minutes";
    const order = (one, other) =>
      (one[key] ?? Infinity) - (other[key] ?? Infinity) || one.devices - other.devices;
    return points.filter((point) => !point.outrun_by).sort((one, other) => order(one, other) || 0)[0];
  };

  // the median run keeps the deadline, though too few runs show that the next one does
  const mayBeInTime = (facts, point, rule) => {
    if (missing(rule.deadline_minutes) || point.wall_seconds === null || point.done_minutes === null) return false;
    const minutes = point.wall_seconds / 60 + point.queue_minutes;
    const latest = rule.deadline_minutes + facts.rounding;
    return minutes <= latest && latest < point.done_minutes;
  };

  // ---- the point of a series, and what the runs cannot tell about it: decision/choice.py -------

  const share = (point) => point.n_reached / point.n;

  const choose = (facts, points, rule, between) => {
    const met = points.filter((point) => !point.misses.length);
    if (!met.length) return null;
    if (!missing(rule.deadline_minutes)) {
      const faster = met.filter((point) => !point.outrun_by);
      return faster.length ? { point: faster[0], open: [] } : null;
    }
    const worth = 1 + rule.min_gain, knee = withoutCriterion(rule);
    const ratioOf = (more, fewer) => between(more.series, more.devices, fewer.series, fewer.devices);
    const worthIt = (more, fewer) => {
      const ratio = ratioOf(more, fewer);
      if (!ratio) return "open";
      const found = verdict(facts, ratio, worth);
      // where more runs fail to reach the target, their time rests on luck
      const luck = facts.measure === "time to target" && share(more) < share(fewer);
      return found === "shown" && luck ? "open" : found;
    };
    const steps = [met[0]];
    for (const point of met.slice(1)) {
      if (!point.outrun_by && worthIt(point, steps.at(-1)) === "shown") steps.push(point);
    }
    const last = steps.at(-1);
    const best = knee ? steps.reduce((top, point) => (point.power > top.power ? point : top)) : last;
    const open = [];
    const ask = (kind, devices, than, ratio, threshold) => open.push({ kind, devices, than, ratio, threshold });
    if (best === last) {
      for (const point of met.filter(({ devices }) => devices > last.devices)) {
        const ratio = ratioOf(point, last);
        if (ratio && worthIt(point, last) === "open") ask("more", point.devices, last.devices, ratio, worth);
      }
    }
    for (const point of met.filter(({ devices }) => devices < best.devices)) {
      const ratio = ratioOf(best, point);
      if (ratio && !steps.includes(point) && worthIt(best, point) !== "shown")
        ask("fewer", point.devices, best.devices, ratio, worth);
    }
    if (knee) {
      // power is speed^2 / devices: the larger count has more of it beyond the root of the devices' ratio
      for (const point of met.filter((each) => each !== best)) {
        const [fewer, more] = point.devices < best.devices ? [point, best] : [best, point];
        const ratio = ratioOf(more, fewer), threshold = Math.sqrt(more.devices / fewer.devices);
        if (ratio && verdict(facts, ratio, threshold) === "open") ask("knee", point.devices, best.devices, ratio, threshold);
      }
    }
    if (!missing(rule.min_efficiency)) {
      const [series, base] = facts.best;
      for (const point of points.filter(({ devices }) => devices >= best.devices)) {
        const ratio = between(point.series, point.devices, series, base);
        if (!ratio || point.outrun_by) continue;
        const threshold = (rule.min_efficiency * point.devices) / base;
        const found = verdict(facts, ratio, threshold * (1 - 2 * facts.rounding));
        const efficient = point.gain_efficiency >= rule.min_efficiency - facts.rounding;
        if (point === best ? found !== "shown" : !efficient && found !== "not worth it")
          ask(point === best ? "efficient" : "inefficient", point.devices, base, ratio, threshold);
      }
    }
    const gain = ratioOf(best, { series: best.series, devices: best.gain_base });
    if (gain && gain.at_most > facts.known_within * gain.at_least)
      ask("gain", best.devices, best.gain_base, gain, facts.known_within);
    return { point: best, open };
  };

  // ---- the series: decision/selection.py -------------------------------------------------------

  const fastest = (choices) =>
    choices.reduce((top, choice) =>
      (choice.point.speed ?? -Infinity) > (top.point.speed ?? -Infinity) ? choice : top);

  const chooseSeries = (facts, choices, rule, between) => {
    if (!missing(rule.deadline_minutes)) {
      const fewest = Math.min(...choices.map(({ point }) => point.devices));
      choices = choices.filter(({ point }) => point.devices === fewest);
    }
    const own = choices.find(({ point }) => point.series === facts.first);
    if (!own) return fastest(choices);
    const rivals = choices.filter((choice) => choice !== own);
    const p = rivals.map(({ point }) => {
      const ratio = between(point.series, point.devices, facts.first, point.devices);
      return ratio && ratio.n >= facts.enough_repeats ? ratio.p_above : null;
    });
    const adjusted = holm(p);
    const faster = rivals.filter((_, index) => adjusted[index] !== null && adjusted[index] <= facts.significance);
    return faster.length ? fastest(faster) : own;
  };

  // ---- the decision ----------------------------------------------------------------------------

  // rule: min_efficiency, deadline_minutes, max_device_hours (null: not asked for), min_gain, and
  // queue_minutes for every device count (null: as the site has them)
  const decide = (facts, asked) => {
    const rule = { ...asked };
    let judged = true;
    if (!facts.whole_runs) {
      judged = missing(rule.deadline_minutes) && missing(rule.max_device_hours);
      rule.deadline_minutes = rule.max_device_hours = null;
    }
    const known = new Map(
      rows(facts.pair_columns, facts.pairs).map((ratio) =>
        [[ratio.series, ratio.devices, ratio.than_series, ratio.than_devices].join(), ratio]),
    );
    const between = (...places) => known.get(places.join());
    const points = evaluate(facts, rule);
    for (const point of points)
      if (point.devices !== point.gain_base) point.ratio = between(point.series, point.devices, point.series, point.gain_base);
    const bySeries = new Map();
    for (const point of points) bySeries.set(point.series, [...(bySeries.get(point.series) ?? []), point]);
    const choices = [...bySeries.values()].map((own) => choose(facts, own, rule, between)).filter(Boolean);
    const chosen = choices.length ? chooseSeries(facts, choices, rule, between) : null;
    const best = chosen ? chosen.point : null, open = chosen ? chosen.open : [];
    const shown = best ?? closest(points, rule);
    const series = bySeries.get(shown.series);
    const fewer = series.filter((point) => !best || point.devices < best.devices);
    const undecided = {};
    const add = (devices, repeats) => { undecided[devices] = Math.max(undecided[devices] ?? 0, repeats); };
    for (const question of open) {
      question.needed = runsNeeded(facts, question);
      if (question.needed === null) continue;
      for (const devices of [question.devices, question.than]) add(devices, question.needed - question.ratio.n);
    }
    const late = fewer.filter((point) => mayBeInTime(facts, point, rule));
    for (const point of late) add(point.devices, point.n);
    const most = rule.max_device_hours;
    const mayCostMore =
      best !== null && !missing(most) && best.wall_seconds !== null && (best.device_hours * best.longest_seconds) / best.wall_seconds > most + facts.rounding;
    const anyway = [...facts.open_anyway, ...facts.doubts[shown.series]];
    const single = (best && facts.chooses_devices ? [best] : series).some((point) => point.speedup_n < 2);
    return {
      devices: best && best.devices,
      series: facts.names[shown.series],
      clear: judged && !open.length && !late.length && !mayCostMore && !single && !anyway.length,
      anyway, open, late, mayCostMore, undecided, judged, best, shown, points: series, rule,
    };
  };

  // ---- in words --------------------------------------------------------------------------------

  const nameOf = (facts, point) => {
    const name = facts.names[point.series];
    return name === facts.no_options ? "" : ` (${name})`;
  };
  // what an efficiency is relative to, if not to the series' own baseline
  const overBest = (facts, point) => {
    const [series, devices] = facts.best;
    if (series === point.series && devices === point.gain_base) return "";
    const name = facts.names[series];
    return ` relative to ${count(devices)}${name === facts.no_options ? "" : ` of ${name}`}`;
  };
  const toTarget = (facts) => facts.measure === "time to target";
  // results that differ are not the same work done sooner
  const sooner = (facts, point) =>
    toTarget(facts) ? "the speed to the target of" : lostAccuracy(point) ? "the throughput of" : "as fast as";
  const lostAccuracy = ({ accuracy_lost: lost }) => (lost >= 0.05 ? `${fixed(lost, 1)} points of accuracy lost` : "");
  // "2.97 to 3.03, n = 3" of the ratio to the baseline; empty for the baseline itself
  const boundsOf = ({ ratio }) => {
    if (!ratio) return "";
    const bounds = interval(ratio);
    return `${bounds ? `${bounds.map(ratioText).join(" to ")}, ` : ""}n = ${ratio.n}`;
  };
  const inBrackets = (text) => (text ? ` (${text})` : "");
  const missedTarget = (facts, point) =>
    toTarget(facts) && point.n_reached < point.n ? `${point.n_reached} of ${point.n} runs reached the target` : "";
  const durationText = (seconds) =>
    seconds < 60 ? `${threeDigits(seconds)} s` : `${threeDigits(seconds / 60)} minutes`;
  // what a whole run costs on the devices that are billed; empty without a price
  const costOf = (point, { price, currency }) =>
    missing(price) || point.device_hours === null
      ? ""
      : `${threeDigits(point.device_hours * price)}${currency ? ` ${currency}` : ""}`;
  const costs = (point, money) => {
    if (point.device_hours === null)
      return point.devices === point.gain_base ? [] : [`${ratioText(point.cost_ratio)}x the device-hours of training`];
    const cost = costOf(point, money);
    return [plural(threeDigits(point.device_hours), "device-hour"), ...(cost ? [cost] : [])];
  };

  // why the next count was not taken
  const whyNot = (facts, point, { best, rule }) => {
    const reasons = shortcomings(point), missed = inBrackets(missedTarget(facts, point));
    if (reasons.length) return `${reasons.join(", and ")}${missed}`;
    if (!missing(rule.deadline_minutes)) return `more than the deadline needs${missed}`;
    if (withoutCriterion(rule) && point.power <= best.power) return `past the knee${missed}`;
    return `not shown to be ${exact(100 * rule.min_gain)} % ${toTarget(facts) ? "sooner at the target" : "faster"}${missed}`;
  };

  const wouldBe = (facts, point, result) => {
    const miss = whyNot(facts, point, result);
    const speed = `${point.devices} would be ${ratioText(point.gain)}x${inBrackets(boundsOf(point))}`;
    // the efficiency is in the reason already where it is what is missed
    return miss.startsWith("efficiency ")
      ? `${speed} at ${miss.slice("efficiency ".length)}`
      : `${speed} at ${fixed(point.gain_efficiency, 2)}: ${miss}`;
  };

  const answer = (facts, result, money) => {
    const { best, shown, points, rule } = result;
    if (!best) {
      if (!missing(rule.deadline_minutes) && shown.done_minutes === null)
        return "No decision: how long whole runs take is not known, and the deadline is judged by that.";
      if (!missing(rule.max_device_hours) && shown.device_hours === null)
        return "No decision: the runs' device-hours are not known, and their limit is judged by them.";
      const asked = withoutCriterion(rule) ? "can be recommended" : "meets all criteria";
      const nearest = `${count(shown.devices)}${nameOf(facts, shown)} ${shown.devices === 1 ? "comes" : "come"} nearest`;
      return `No device count ${asked}. ${nearest}: ${shortcomings(shown).join(", and ")}.`;
    }
    const parts = [];
    if (best.devices !== best.gain_base)
      parts.push(
        `${ratioText(best.gain)}x ${sooner(facts, best)} ${best.gain_base}${inBrackets(boundsOf(best))} at efficiency ` +
          `${fixed(best.gain_efficiency, 2)}${toTarget(facts) ? " to the target" : ""}${overBest(facts, best)}`,
        ...(toTarget(facts) || !lostAccuracy(best) ? [] : [lostAccuracy(best)]),
      );
    if (best.wall_seconds !== null) parts.push(`a run of ${durationText(best.wall_seconds)}`);
    parts.push(...costs(best, money));
    const said = `Use ${count(best.devices)}${nameOf(facts, best)}${parts.length ? `: ${parts.join(", ")}` : ""}`;
    // with a deadline fewer devices are wanted, else more
    const beside = missing(rule.deadline_minutes)
      ? points.find((point) => point.devices > best.devices)
      : points.filter((point) => point.devices < best.devices).at(-1);
    if (!beside) return `${said}.`;
    if (missing(rule.deadline_minutes)) return `${said}; ${wouldBe(facts, beside, result)}.`;
    const miss = whyNot(facts, beside, result);
    return `${said}; ${beside.devices} would ${miss.startsWith("up to") ? "take" : "bring"} ${miss}.`;
  };

  const cure = (facts, { kind, needed, ratio }) =>
    needed === null || needed - ratio.n > facts.most_advised
      ? `${kind === "gain" ? "That" : "Too close to tell apart at this scatter: that"} would take more than ${facts.most_advised} more repeats of each.`
      : `About ${plural(String(needed - ratio.n), "more repeat")} of each should settle it.`;

  const openText = (facts, { open, late, mayCostMore, rule }) => {
    const said = [];
    if (open.length) {
      const ofChosen = { efficient: "That its efficiency is enough", gain: "How much faster it is" };
      const counts = [...new Set(open.filter(({ kind }) => !ofChosen[kind]).map(({ devices }) => devices))];
      counts.sort((one, other) => one - other);
      const most = open.reduce((top, each) => ((each.needed ?? Infinity) > (top.needed ?? Infinity) ? each : top));
      if (!counts.length) said.push(`${ofChosen[open[0].kind]} is not clear from these runs. ${cure(facts, open[0])}`);
      else {
        const verb = counts.length > 1 || counts[0] === 1 ? "is" : "are";
        said.push(`Whether ${counts.join(" or ")} ${verb} better is not clear from these runs. ${cure(facts, most)}`);
      }
    }
    for (const point of late)
      said.push(`${count(point.devices)} may be in time: their runs are done within ${threeDigits(point.wall_seconds / 60 + point.queue_minutes)} minutes on average, the next one may take up to ${threeDigits(point.done_minutes)}.`);
    if (mayCostMore) said.push(`A run may take more than the ${exact(rule.max_device_hours)} device-hours allowed.`);
    return said;
  };

  const differs = (facts, { devices, series }) => {
    const own = facts.own;
    const where = (count_, name) => `${count(count_)}${!name || name === facts.no_options ? "" : ` (${name})`}`;
    if (own.devices === null) return "The study itself has no answer under its own criteria.";
    if (devices === own.devices && series === own.series) return "The study's own answer is the same.";
    return `The study's own answer: ${where(own.devices, own.series)}.`;
  };

  // the answer and further sentences
  const describe = (facts, result, money) => {
    const { best } = result;
    const notes = openText(facts, result);
    if (best && best.n_unsuccessful > 0)
      notes.push(`${best.unsuccessful} of ${best.n_unsuccessful + best.n} runs on ${count(best.devices)}.`);
    if (best && missedTarget(facts, best)) notes.push(`${missedTarget(facts, best)}.`);
    if (best && toTarget(facts) && lostAccuracy(best)) notes.push(`Against the baseline ${lostAccuracy(best)}.`);
    if (best && best.n === 1) notes.push("It rests on single runs.");
    if (best && best.billed_devices && best.billed_devices !== best.devices)
      notes.push(`Device-hours count the ${count(best.billed_devices)} that are billed.`);
    if (best && !missing(money.price) && !costOf(best, money))
      notes.push("What a whole run costs is not known, because its device-hours are not.");
    notes.push(differs(facts, result));
    if (facts.chooses_devices) {
      const left = facts.unmeasured.length ? ` Not measured, and not judged here: ${facts.unmeasured.join(", ")}.` : "";
      notes.push(`The study measured the counts that its own criteria needed; others may need other counts.${left}`);
    }
    if (result.anyway.length) notes.push(`Open by whatever criterion: ${result.anyway.join(" ")}`);
    return { answer: answer(facts, result, money), notes };
  };

  globalThis.scalewiseWhatIf = { decide, describe, shortcomings, whyNot };

  // ---- the fields ------------------------------------------------------------------------------

  const CRITERIA = ["min_efficiency", "deadline_minutes", "max_device_hours"];
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

  // a part of an address as text; as it stands where it is none that a browser writes
  const plain = (part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };

  const wire = async (section) => {
    const experiment = section.dataset.experiment;
    const facts = (await scalewiseData).get(experiment)?.what_if;
    if (!facts || facts.left_out) return;
    const form = section.querySelector("form");
    const output = section.querySelector(".what-if-answer");
    const [sentence, further] = output.children;
    // read out when it has become another one, not at every step of the slider
    const say = (text, notes, problem) => {
      if (sentence.textContent !== text) sentence.textContent = text;
      sentence.className = problem ? "problem" : "sentence";
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
        const input = field(name), asked = CRITERIA.includes(name) ? tick(name).checked : true;
        const [value, problem] = asked && !input.disabled ? readField(input, limits) : [null, ""];
        values[name] = value;
        const note = document.getElementById(input.getAttribute("aria-describedby"));
        note.textContent = problem;
        if (problem) input.setAttribute("aria-invalid", "true");
        else input.removeAttribute("aria-invalid");
        if (problem) problems.push(problem);
      }
      const rule = { ...values, min_gain: values.min_gain / 100 };
      return { rule, money: { price: values.price, currency: field("currency").value.trim() }, problems };
    };

    const showCounts = (result, money) => {
      const known = (value, text) => (value === null ? "–" : text(value));
      const priced = !missing(money.price);
      section.querySelector(".what-if-cost").hidden = !priced;
      body.replaceChildren(
        ...result.points.map((point) => {
          const chosen = point === result.best;
          const row = element("tr");
          if (chosen) row.className = "chosen";
          const cells = [
            `${ratioText(point.gain)}x`,
            fixed(point.gain_efficiency, 2),
            known(point.done_minutes, threeDigits),
            known(point.device_hours, threeDigits),
            ...(priced ? [costOf(point, money) || "–"] : []),
          ];
          row.append(element("th", String(point.devices), { scope: "row" }), ...cells.map((text) => element("td", text)));
          if (boundsOf(point)) row.cells[1].append(element("small", boundsOf(point)));
          const reason = chosen ? "chosen" : result.best ? whyNot(facts, point, result) : shortcomings(point).join(", and ");
          const fewer = result.best && point.devices < result.best.devices && !shortcomings(point).length;
          row.append(element("td", fewer ? `slower than ${result.best.devices}` : reason, { class: "reason" }));
          return row;
        }),
      );
      const name = nameOf(facts, result.shown);
      section.querySelector(".what-if-counts caption").textContent = `Every device count under these criteria${name}`;
    };

    const update = () => {
      const { rule, money, problems } = read();
      slider.value = rule.min_efficiency ?? slider.value;
      section.querySelector(".what-if-counts").hidden = problems.length > 0;
      if (problems.length) {
        say(`Not decided again. ${problems.join(" ")}`, [], true);
        return;
      }
      const result = decide(facts, rule);
      const { answer: said, notes } = describe(facts, result, money);
      say(said, notes, false);
      output.dataset.devices = result.devices ?? "";
      output.dataset.series = result.series;
      showCounts(result, money);
      const given = new URLSearchParams(CRITERIA.filter((name) => tick(name).checked).map((name) => ["criterion", name]));
      for (const name of names) if (field(name).value !== field(name).defaultValue) given.append(name, field(name).value);
      link.href = `#${section.id}?${given}`;
    };

    // #experiment.what-if?criterion=min_efficiency&min_efficiency=0.6
    const fromLink = () => {
      const [id, given] = location.hash.slice(1).split("?");
      if (plain(id) !== section.id || given === undefined) return;
      const values = new URLSearchParams(given);
      form.reset();
      for (const name of CRITERIA) tick(name).checked = values.getAll("criterion").includes(name) && !tick(name).disabled;
      for (const name of names) if (values.has(name)) field(name).value = values.get(name);
      update();
      section.scrollIntoView();
    };

    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(update));
    form.addEventListener("input", ({ target }) => {
      // who writes a value wants it to count
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
