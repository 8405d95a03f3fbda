// The sections "Translate a date" and "Continue a sentence".

export function startText() {}
