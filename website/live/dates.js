// Dates as six languages write them, with the table of chapter 11: a day is [year, month, day].

const FIRST = 1950, LAST = 2049; // the years that the translator was trained on

export const iso = ([year, month, day]) => `${year}-${`${month}`.padStart(2, "0")}-${`${day}`.padStart(2, "0")}`;

const weekdayOf = (day) => (new Date(`${iso(day)}T00:00Z`).getUTCDay() + 6) % 7; // 0 is Monday
const daysIn = (year, month) => new Date(Date.UTC(year, month, 0)).getUTCDate();

// A day in one form of a language, as `fill_form` of utils.data.dates writes it.
export function writeDate(day, table, form) {
  const [year, month, dayOfMonth] = day, two = (number) => `${number}`.padStart(2, "0");
  const fields = {
    "year": year, "year_2:02": two(year % 100),
    "month": month, "month:02": two(month), "day": dayOfMonth, "day:02": two(dayOfMonth),
    "month_name": table.months[month - 1], "month_short": table.short_months[month - 1],
    "weekday": table.weekdays[weekdayOf(day)],
  };
  return table.forms[form].replace(/\{(.*?)\}/g, (_, field) => fields[field]);
}

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
const oneOf = (name, words) => `(?<${name}>${words.map(escaped).join("|")})`;

// A form as a regular expression with one named group for each field.
function pattern(template, table) {
  const fields = {
    "year": "(?<year>[1-9]\\d{3})", "year_2": "(?<year_2>\\d\\d)",
    "month": "(?<month>\\d\\d?)", "day": "(?<day>\\d\\d?)",
    "month_name": oneOf("name", table.months), "month_short": oneOf("short", table.short_months),
    "weekday": oneOf("weekday", table.weekdays),
  };
  const parts = template.split(/\{(.*?)\}/); // text, field, text, ...
  const made = parts.map((part, at) => at % 2 ? fields[part.split(":")[0]] : escaped(part));
  return new RegExp(`^${made.join("")}$`, "u");
}

// The day that a text means in a language, or a sentence that says why it means none:
// {day, note} or {problem}.
export function readDate(text, table) {
  const forms = Object.values(table.forms);
  const found = forms.map((template) => pattern(template, table).exec(text)?.groups).find(Boolean);
  if (!found) {
    const example = writeDate([1998, 1, 2], table, "long");
    return { problem: `The text must be a date as ${table.name} writes it, got “${text}”. `
      + `Write it like “${example}”.` };
  }
  const short = Number(found.year_2), year = Number(found.year ?? (short < FIRST % 100 ? 2000 : 1900) + short);
  const place = found.name ? table.months.indexOf(found.name) : table.short_months.indexOf(found.short);
  const month = found.month ? Number(found.month) : place + 1, day = Number(found.day);
  if (month < 1 || month > 12) return { problem: `The month must be 1 to 12, got ${month}. In ${table.name}, `
    + `1 February 1998 is “${writeDate([1998, 2, 1], table, "short")}”.` };
  const days = daysIn(year, month);
  if (day < 1 || day > days) return { problem: `The day must be 1 to ${days} in ${table.months[month - 1]} ${year}, `
    + `got ${day}. There is no such day.` };
  const weekday = table.weekdays[weekdayOf([year, month, day])], notes = [];
  if (found.weekday && found.weekday !== weekday) notes.push(`The weekday of this day is ${weekday}.`);
  if (year < FIRST || year > LAST) notes.push(`The model was trained on ${FIRST} to ${LAST} only.`);
  return { day: [year, month, day], note: notes.join(" ") };
}

// Characters of a text and its language as ids, or a sentence about what the model cannot read.
export function sourceIds(text, language, symbols, longest) {
  const characters = Array.from(text), ids = [`<${language}>`, ...characters].map((one) => symbols.indexOf(one));
  if (!characters.length) return { problem: "There must be a date, got an empty field. Type one or press an example." };
  const unknown = ids.indexOf(-1);
  if (unknown !== -1) return { problem: `Every character must be one that the model has read in training, got `
    + `“${characters[unknown - 1]}”. Remove it.` };
  if (ids.length > longest) return { problem: `A date must have at most ${longest - 1} characters, the number of `
    + `positions without the language, got ${characters.length}. Shorten it.` };
  return { ids };
}
