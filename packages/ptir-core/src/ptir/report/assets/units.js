// Numbers for people.
const scaled = (value, units, base) => {
  let unit = 0;
  while (Math.abs(value) >= base && unit < units.length - 1) [value, unit] = [value / base, unit + 1];
  return `${Math.abs(value) >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
};
const bytes = (value) => scaled(value, ["B", "kB", "MB", "GB", "TB"], 1000);
const time = (micros) =>
  micros < 10 ? `${micros.toFixed(2)} µs` : scaled(micros, ["µs", "ms", "s"], 1000);
const rate = (value, unit) => scaled(value, ["", "k", "M", "G", "T"].map((p) => p + unit), 1000);
const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;
