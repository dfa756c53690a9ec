"use strict";
// The start of the service, as /health/ready tells it.

const PHASES = [["import", "Process"], ["locate", "Checkpoint"], ["weights", "Weights"], ["tokenizer", "Tokenizer"], ["executables", "Executables"], ["warm", "First token"]];
const bytes = (count) => {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < 4) { count /= 1000; unit += 1; }
  return `${count.toFixed(unit ? 1 : 0)} ${units[unit]}`;
};
const seconds = (count) => count < 90 ? `${count < 10 ? count.toFixed(1) : Math.round(count)} s` : `${Math.round(count / 60)} min`;

function showStart(progress) {
  const { percent, estimated_seconds_left: left } = progress;
  const running = Object.fromEntries(Object.entries(progress.phases_running_seconds ?? {}).map(([name, age]) => [name.split(" ")[0], age]));
  const done = progress.phases_done_seconds ?? {};
  if (percent === null || percent === undefined) at("bar").removeAttribute("value"); else at("bar").value = percent;
  at("left-percent").textContent = percent === null || percent === undefined ? "" : `${percent} %`;
  at("left-time").textContent = left ? `complete in about ${seconds(left)}` : `${seconds(progress.seconds ?? 0)} so far`;
  const detail = {
    weights: progress.bytes_total ? `${bytes(progress.bytes_done)} of ${bytes(progress.bytes_total)}` : "",
    executables: progress.executables_total ? `${progress.executables_done} of ${progress.executables_total}` : "",
  };
  at("phases").replaceChildren(...PHASES.map(([phase, label]) => {
    const isWaiting = phase === "executables" && progress.executables_done < progress.executables_total;
    const isRunning = phase in running || isWaiting, isDone = !isRunning && phase in done;
    const item = make("li", {}, make("span", { textContent: isDone ? "✓" : isRunning ? "→" : "" , ariaHidden: "true" }),
      make("span", { textContent: label }), make("span", { textContent: detail[phase] ?? "" }),
      make("span", { textContent: phase in running ? seconds(running[phase]) : isDone ? seconds(done[phase]) : "" }));
    item.dataset.state = isRunning ? "running" : isDone ? "done" : "waiting";
    item.append(make("span", { className: "out-of-sight", textContent: item.dataset.state }));
    return item;
  }));
}
