// What the models are made of, on arrays of 64-bit numbers: the functions of `utils`, with its names
// and axis letters. A tensor is {shape, data}; its last axis changes fastest, as in PyTorch. No
// function changes its input.

export function tensor(shape, data) {
  const size = shape.reduce((product, length) => product * length, 1);
  if (data && data.length !== size) throw new Error(`shape ${shape} needs ${size} numbers, got ${data.length}`);
  return { shape, data: data ?? new Float64Array(size) };
}

export function add(x, y) {
  const result = tensor(x.shape);
  for (let at = 0; at < x.data.length; at++) result.data[at] = x.data[at] + y.data[at];
  return result;
}

// (n, e), weight (m, e), bias (m) or null -> (n, m): each token times the transposed weight. Two
// tokens and four rows of the weight at a time need fewer reads; the last ones are done twice.
export function linear(x, weight, bias) {
  const [n, e] = x.shape, [m] = weight.shape, result = tensor([n, m]);
  const from = x.data, by = weight.data, to = result.data;
  const start = (column) => bias ? bias.data[column] : 0;
  for (let j = 0; j < m; j += 4) {
    const j1 = Math.min(j + 1, m - 1), j2 = Math.min(j + 2, m - 1), j3 = Math.min(j + 3, m - 1);
    const r = j * e, s = j1 * e, t = j2 * e, u = j3 * e;
    for (let i = 0; i < n; i += 2) {
      const p = i * e, q = Math.min(i + 1, n - 1) * e;
      let a = start(j), b = start(j1), c = start(j2), d = start(j3), f = a, g = b, h = c, l = d;
      for (let k = 0; k < e; k++) {
        const one = from[p + k], two = from[q + k];
        a += one * by[r + k]; b += one * by[s + k]; c += one * by[t + k]; d += one * by[u + k];
        f += two * by[r + k]; g += two * by[s + k]; h += two * by[t + k]; l += two * by[u + k];
      }
      const above = i * m, below = Math.min(i + 1, n - 1) * m;
      to[above + j] = a; to[above + j1] = b; to[above + j2] = c; to[above + j3] = d;
      to[below + j] = f; to[below + j1] = g; to[below + j2] = h; to[below + j3] = l;
    }
  }
  return result;
}

// (n, e) -> (n, e): every token gets mean 0 and standard deviation 1, then weight and bias
export function layerNorm(x, weight, bias, eps = 1e-5) {
  const [n, e] = x.shape, result = tensor([n, e]);
  for (let i = 0; i < n; i++) {
    let mean = 0, variance = 0;
    for (let k = 0; k < e; k++) mean += x.data[i * e + k] / e;
    for (let k = 0; k < e; k++) variance += (x.data[i * e + k] - mean) ** 2 / e;
    const scale = 1 / Math.sqrt(variance + eps);
    for (let k = 0; k < e; k++) {
      result.data[i * e + k] = (x.data[i * e + k] - mean) * scale * weight.data[k] + bias.data[k];
    }
  }
  return result;
}

// The error function to 2e-7, by Abramowitz and Stegun, formula 7.1.26.
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const sum = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - sum * Math.exp(-x * x));
}

export function gelu(x) {
  const result = tensor(x.shape);
  for (let at = 0; at < x.data.length; at++) result.data[at] = x.data[at] / 2 * (1 + erf(x.data[at] / Math.SQRT2));
  return result;
}

// softmax over one axis; a line of minus infinities gives 0, as a fully masked row does in `utils`
export function softmax(x, axis = x.shape.length - 1) {
  const result = tensor(x.shape), length = x.shape[axis];
  const stride = x.shape.slice(axis + 1).reduce((product, size) => product * size, 1);
  for (let start = 0; start < x.data.length; start++) {
    if (Math.floor(start / stride) % length) continue; // not the first of its line
    let highest = -Infinity, sum = 0;
    for (let k = 0; k < length; k++) highest = Math.max(highest, x.data[start + k * stride]);
    if (highest === -Infinity) continue;
    for (let k = 0; k < length; k++) {
      const at = start + k * stride;
      result.data[at] = Math.exp(x.data[at] - highest);
      sum += result.data[at];
    }
    for (let k = 0; k < length; k++) result.data[start + k * stride] /= sum;
  }
  return result;
}

// "n (h d) -> h n d"
export function splitHeads(x, h) {
  const [n, e] = x.shape, d = e / h, result = tensor([h, n, d]);
  for (let head = 0; head < h; head++) {
    for (let i = 0; i < n; i++) {
      for (let k = 0; k < d; k++) result.data[(head * n + i) * d + k] = x.data[i * e + head * d + k];
    }
  }
  return result;
}

// "h n d -> n (h d)"
export function joinHeads(x) {
  const [h, n, d] = x.shape, result = tensor([n, h * d]);
  for (let head = 0; head < h; head++) {
    for (let i = 0; i < n; i++) {
      for (let k = 0; k < d; k++) result.data[(i * h + head) * d + k] = x.data[(head * n + i) * d + k];
    }
  }
  return result;
}

// "h i d, h j d -> h i j", divided by a number, the square root of d
export function attentionScores(q, k, divisor = Math.sqrt(q.shape[2])) {
  const [h, i, d] = q.shape, j = k.shape[1], result = tensor([h, i, j]);
  for (let head = 0; head < h; head++) {
    for (let row = 0; row < i; row++) {
      for (let column = 0; column < j; column++) {
        let sum = 0;
        const query = (head * i + row) * d, key = (head * j + column) * d;
        for (let at = 0; at < d; at++) sum += q.data[query + at] * k.data[key + at];
        result.data[(head * i + row) * j + column] = sum / divisor;
      }
    }
  }
  return result;
}

// scores (h, i, j) where mask (i, j) is 1, minus infinity elsewhere
export function masked(scores, mask) {
  const size = mask.data.length;
  return tensor(scores.shape, scores.data.map((value, at) => mask.data[at % size] ? value : -Infinity));
}

// (i, j), 1 = may attend: to itself and to what comes before
export function causalMask(n) {
  return tensor([n, n], Float64Array.from({ length: n * n }, (_, at) => at % n <= Math.floor(at / n) ? 1 : 0));
}

// "h i j, h j d -> h i d"
export function weightedSum(weights, v) {
  const [h, i, j] = weights.shape, d = v.shape[2], result = tensor([h, i, d]);
  for (let head = 0; head < h; head++) {
    for (let row = 0; row < i; row++) {
      const to = (head * i + row) * d;
      for (let column = 0; column < j; column++) {
        const weight = weights.data[(head * i + row) * j + column], from = (head * j + column) * d;
        for (let at = 0; at < d; at++) result.data[to + at] += weight * v.data[from + at];
      }
    }
  }
  return result;
}

// image (H, W) -> (n, p p): "(gh ph) (gw pw) -> (gh gw) (ph pw)"
export function patchify(image, p) {
  const [height, width] = image.shape, columns = width / p, result = tensor([height / p * columns, p * p]);
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      const patch = Math.floor(row / p) * columns + Math.floor(column / p);
      result.data[patch * p * p + row % p * p + column % p] = image.data[row * width + column];
    }
  }
  return result;
}

// ids [n] -> (n, e): row number id of a matrix (v, e)
export function lookUp(ids, matrix) {
  const e = matrix.shape[1], result = tensor([ids.length, e]);
  ids.forEach((id, i) => result.data.set(matrix.data.subarray(id * e, (id + 1) * e), i * e));
  return result;
}

// tensors (n1, e), (n2, e), ... -> (n1 + n2 + ..., e)
export function concatenate(parts) {
  const e = parts[0].shape[1], result = tensor([parts.reduce((sum, part) => sum + part.shape[0], 0), e]);
  let at = 0;
  for (const part of parts) {
    result.data.set(part.data, at);
    at += part.data.length;
  }
  return result;
}

// rows first to last - 1 of (n, e)
export function rows(x, first, last) {
  const e = x.shape[1];
  return tensor([last - first, e], x.data.slice(first * e, last * e));
}

// the last row of (n, v), as a list
export const lastRow = (x) => Array.from(x.data.subarray(-x.shape[1]));
