// Enough of CUDA to run its kernels on a CPU: launch indices, barriers, integer atomics. Every thread of a block is a
// coroutine that runs up to the next barrier; blocks run one after another. Both in an order that `seed` shuffles, so
// that a result which depends on the order shows.

#include <stdlib.h>
#include <ucontext.h>

struct Index {
    unsigned int x;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

#define __global__
#define __device__
#define __shared__ static

typedef unsigned long long argument;
typedef void (*function)(argument, argument, argument, argument, argument, argument, argument, argument, argument,
                         argument, argument, argument, argument, argument);

static ucontext_t home, *fibers;
static bool *finished;
static function running;
static const argument *arguments;

static void __syncthreads() {
    unsigned int me = threadIdx.x;
    swapcontext(&fibers[me], &home);
    threadIdx.x = me;
}

template <typename T>
static T atomicAdd(T *target, T value) {
    T old = *target;
    *target += value;
    return old;
}

static void enter() {
    const argument *a = arguments;
    running(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13]);
    finished[threadIdx.x] = true;
}

static void shuffle(unsigned int *order, unsigned int n, argument *seed) {
    for (unsigned int i = 0; i < n; i++) order[i] = i;
    for (unsigned int i = n; i-- > 1;) {
        *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
        unsigned int j = (unsigned int)((*seed >> 33) % (i + 1)), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

extern "C" void shim_launch(function kernel, unsigned int grid, unsigned int block, const argument *all, argument seed) {
    const size_t stack = 1 << 15;
    running = kernel;
    arguments = all;
    gridDim.x = grid;
    blockDim.x = block;
    fibers = (ucontext_t *)calloc(block, sizeof(ucontext_t));
    finished = (bool *)calloc(block, 1);
    char *stacks = (char *)malloc(stack * block);
    unsigned int *blocks = (unsigned int *)calloc(grid, sizeof(unsigned int));
    unsigned int *threads = (unsigned int *)calloc(block, sizeof(unsigned int));
    shuffle(blocks, grid, &seed);
    for (unsigned int b = 0; b < grid; b++) {
        blockIdx.x = blocks[b];
        for (unsigned int t = 0; t < block; t++) {
            getcontext(&fibers[t]);
            fibers[t].uc_stack.ss_sp = stacks + stack * t;
            fibers[t].uc_stack.ss_size = stack;
            fibers[t].uc_link = &home;
            makecontext(&fibers[t], enter, 0);
            finished[t] = false;
        }
        for (bool left = true; left;) {
            left = false;
            shuffle(threads, block, &seed);
            for (unsigned int t = 0; t < block; t++) {
                threadIdx.x = threads[t];
                if (finished[threads[t]]) continue;
                swapcontext(&home, &fibers[threads[t]]);
                left = left || !finished[threads[t]];
            }
        }
    }
    free(threads);
    free(blocks);
    free(stacks);
    free(finished);
    free(fibers);
}
