// Kernels over the words of a bucket, compiled once per word width: kernels/device.py puts WORD_BITS, CHUNK, BINS and
// the constants of the state digest before this text. The tests compile the same text for the CPU, so it uses launch
// indices, barriers and integer atomics, and nothing else of CUDA.
//
// Work is cut into chunks of CHUNK words (or changes) of one block, numbered through all blocks, and a thread walks one
// chunk. Every result is a sum over chunks (its prefix sums come from the host's side of the device) or is written at a
// place that follows from such sums, so that no result depends on the order in which threads run.
//
// A table describes n blocks in 3 n + 1 numbers: first chunk of each (n + 1, the last is their total), offset, size.

typedef unsigned long long u64;
#if WORD_BITS == 8
typedef unsigned char word;
#elif WORD_BITS == 16
typedef unsigned short word;
#elif WORD_BITS == 32
typedef unsigned int word;
#else
typedef unsigned long long word;
#endif

struct Chunk {
    u64 block;
    u64 begin, end;  // where its words (or changes) lie
    u64 offset;      // where its block begins
};

__device__ static u64 thread_index() {
    return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}

// The last of n rising numbers that is not over x; the first is not.
__device__ static u64 find(const u64 *numbers, u64 n, u64 x) {
    u64 low = 0;
    while (n > 1) {
        u64 half = n / 2;
        if (numbers[low + half] <= x) {
            low += half;
            n -= half;
        } else {
            n = half;
        }
    }
    return low;
}

__device__ static u64 offset_of(const u64 *table, u64 blocks, u64 b) {
    return table[blocks + 1 + b];
}

__device__ static Chunk chunk_at(const u64 *table, u64 blocks, u64 c) {
    Chunk k;
    k.block = find(table, blocks, c);
    u64 inside = (c - table[k.block]) * CHUNK;
    u64 size = table[2 * blocks + 1 + k.block];
    k.offset = offset_of(table, blocks, k.block);
    k.begin = k.offset + inside;
    k.end = k.offset + (size - inside < CHUNK ? size : inside + CHUNK);
    return k;
}

// Sum of everything before chunk c, from sums that include their own chunk.
__device__ static u64 before(const u64 *ends, u64 c) {
    return c ? ends[c - 1] : 0;
}

// -- sums ------------------------------------------------------------------------------------------------------------

extern "C" __global__ void block_sums(const u64 *ends, const u64 *table, u64 blocks, u64 *sums) {
    u64 b = thread_index();
    if (b >= blocks) return;
    sums[b] = before(ends, table[b + 1]) - before(ends, table[b]);
}

// -- compare ---------------------------------------------------------------------------------------------------------

extern "C" __global__ void count_changes(const word *base, const word *fresh, const u64 *table, u64 blocks, u64 chunks,
                                         u64 *counts) {
    u64 c = thread_index();
    if (c >= chunks) return;
    Chunk k = chunk_at(table, blocks, c);
    u64 n = 0;
    for (u64 i = k.begin; i < k.end; i++) n += base[i] != fresh[i];
    counts[c] = n;
}

extern "C" __global__ void emit_changes(const word *base, const word *fresh, const u64 *table, u64 blocks, u64 chunks,
                                        const u64 *ends, unsigned int *positions, word *from, word *to) {
    u64 c = thread_index();
    if (c >= chunks) return;
    Chunk k = chunk_at(table, blocks, c);
    u64 at = before(ends, c);
    for (u64 i = k.begin; i < k.end; i++) {
        if (base[i] == fresh[i]) continue;
        positions[at] = (unsigned int)(i - k.offset);
        from[at] = base[i];
        to[at] = fresh[i];
        at++;
    }
}

// -- words at positions: moves is the table of each block's changes --------------------------------------------------

extern "C" __global__ void gather(const word *words, const u64 *table, const u64 *moves, u64 blocks, u64 chunks,
                                  const unsigned int *positions, word *out) {
    u64 c = thread_index();
    if (c >= chunks) return;
    Chunk k = chunk_at(moves, blocks, c);
    for (u64 i = k.begin; i < k.end; i++) out[i] = words[offset_of(table, blocks, k.block) + positions[i]];
}

extern "C" __global__ void scatter(word *words, const u64 *table, const u64 *moves, u64 blocks, u64 chunks,
                                   const unsigned int *positions, const word *values) {
    u64 c = thread_index();
    if (c >= chunks) return;
    Chunk k = chunk_at(moves, blocks, c);
    for (u64 i = k.begin; i < k.end; i++) words[offset_of(table, blocks, k.block) + positions[i]] = values[i];
}

// -- exponents -------------------------------------------------------------------------------------------------------

__device__ static u64 field(word w, u64 shift, u64 mask) {
    return ((u64)w >> shift) & mask;
}

// Bins of one launch block first, then of all: counts do not depend on the order in which they are added.
extern "C" __global__ void exponents(const word *words, const u64 *table, u64 blocks, u64 chunks, u64 shift, u64 mask,
                                     u64 step, u64 *out) {
    __shared__ unsigned int bins[BINS];
    for (u64 e = threadIdx.x; e <= mask; e += blockDim.x) bins[e] = 0;
    __syncthreads();
    u64 c = thread_index();
    if (c < chunks) {
        Chunk k = chunk_at(table, blocks, c);
        u64 inside = (k.begin - k.offset + step - 1) / step * step;
        for (u64 i = k.offset + inside; i < k.end; i += step) atomicAdd(&bins[field(words[i], shift, mask)], 1u);
    }
    __syncthreads();
    for (u64 e = threadIdx.x; e <= mask; e += blockDim.x)
        if (bins[e]) atomicAdd(&out[e], (u64)bins[e]);
}

// -- hazards ---------------------------------------------------------------------------------------------------------

extern "C" __global__ void sum_rates(const word *base, const u64 *table, u64 blocks, u64 chunks, const u64 *rate,
                                     u64 shift, u64 mask, u64 *sums) {
    u64 c = thread_index();
    if (c >= chunks) return;
    Chunk k = chunk_at(table, blocks, c);
    u64 x = 0;
    for (u64 i = k.begin; i < k.end; i++) x += rate[field(base[i], shift, mask)];
    sums[c] = x;
}

// Rates of all words of the bucket before word `position` of block b.
__device__ static u64 passed(const word *base, const u64 *table, u64 blocks, const u64 *ends, const u64 *rate,
                             u64 shift, u64 mask, u64 b, u64 position) {
    u64 offset = offset_of(table, blocks, b), done = position / CHUNK * CHUNK;
    u64 x = before(ends, table[b] + position / CHUNK);
    for (u64 i = done; i < position; i++) x += rate[field(base[offset + i], shift, mask)];
    return x;
}

// out[k]: rates between change k - 1 and change k; one more at the end: rates behind the last change.
extern "C" __global__ void hazards(const word *base, const u64 *table, const u64 *moves, u64 blocks, u64 chunks,
                                   const u64 *ends, const unsigned int *positions, const u64 *rate, u64 shift, u64 mask,
                                   u64 *out) {
    u64 c = thread_index();
    if (c >= chunks) return;
    Chunk k = chunk_at(moves, blocks, c);
    u64 behind = 0;  // rates up to and with the change before
    if (k.begin) {
        u64 b = find(moves + blocks + 1, blocks, k.begin - 1), position = positions[k.begin - 1];
        behind = passed(base, table, blocks, ends, rate, shift, mask, b, position) +
                 rate[field(base[offset_of(table, blocks, b) + position], shift, mask)];
    }
    for (u64 i = k.begin; i < k.end; i++) {
        u64 x = passed(base, table, blocks, ends, rate, shift, mask, k.block, positions[i]);
        out[i] = x - behind;
        behind = x + rate[field(base[offset_of(table, blocks, k.block) + positions[i]], shift, mask)];
    }
    if (c == chunks - 1) out[k.end] = before(ends, table[blocks]) - behind;
}

// -- state digest ----------------------------------------------------------------------------------------------------

// Canonical flat index of word k of a tile: a row of geometry has the first word, the base, extents, strides.
__device__ static u64 canonical(const u64 *row, u64 dims, u64 k) {
    u64 index = row[1];
    k += row[0];
    for (u64 d = dims; d-- > 0;) {
        index += (k % row[2 + d]) * row[2 + dims + d];
        k /= row[2 + d];
    }
    return index;
}

__device__ static u64 mix(u64 index, u64 w) {
    u64 x = index * MIX_A + w * MIX_B;
    x ^= x >> 32;
    x *= MIX_C;
    x ^= x >> 29;
    x *= MIX_D;
    return x ^ (x >> 32);
}

__device__ static u64 second(u64 x) {
    return (x ^ (x >> 31)) * MIX_E;
}

extern "C" __global__ void state_words(const u64 *geometry, u64 dims, const word *words, const u64 *table, u64 blocks,
                                       u64 chunks, u64 *lane0, u64 *lane1) {
    u64 c = thread_index();
    if (c >= chunks) return;
    Chunk k = chunk_at(table, blocks, c);
    const u64 *row = geometry + k.block * (2 + 2 * dims);
    u64 sum0 = 0, sum1 = 0;
    for (u64 i = k.begin; i < k.end; i++) {
        u64 x = mix(canonical(row, dims, i - k.offset), words[i]);
        sum0 += x;
        sum1 += second(x);
    }
    lane0[c] = sum0;
    lane1[c] = sum1;
}

extern "C" __global__ void state_changes(const u64 *geometry, u64 dims, const u64 *moves, u64 blocks, u64 chunks,
                                         const unsigned int *positions, const word *from, const word *to, u64 *lane0,
                                         u64 *lane1) {
    u64 c = thread_index();
    if (c >= chunks) return;
    Chunk k = chunk_at(moves, blocks, c);
    const u64 *row = geometry + k.block * (2 + 2 * dims);
    u64 sum0 = 0, sum1 = 0;
    for (u64 i = k.begin; i < k.end; i++) {
        u64 index = canonical(row, dims, positions[i]);
        u64 x = mix(index, to[i]), y = mix(index, from[i]);
        sum0 += x - y;
        sum1 += second(x) - second(y);
    }
    lane0[c] = sum0;
    lane1[c] = sum1;
}
