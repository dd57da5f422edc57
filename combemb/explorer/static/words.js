// Numbers as people write them.

export const number = (n) => n.toLocaleString("en");

/** A number with its noun. */
export const counted = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

export const percent = (share) => `${Math.round(100 * share)}%`;
