/* Repeats recorded calls of the decoder (tests/support/recorded_calls.py), on the processor and system that this is compiled for.
 *
 *     replay LIBRARY FILE [KERNELS]      status 0: each logit equals the recorded one up to its last bits, and
 *                                        bitwise identical logits are bitwise identical here, too
 *
 * The file has cases, each: a header; memory, whose pointers are offsets in it; the positions of the pointers; the calls;
 * the logits, and the ranges that are bitwise identical. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
static void *open_library(const char *path) { return (void *)LoadLibraryA(path); }
static void *find(void *library, const char *name) { return (void *)GetProcAddress(library, name); }
#else
#include <dlfcn.h>
static void *open_library(const char *path) { return dlopen(path, RTLD_NOW); }
static void *find(void *library, const char *name) { return dlsym(library, name); }
#endif

/* Of the largest logit of a case. Keys of 16 bits and the inputs of int8 may be rounded to the other side. */
#define TOLERANCE 5e-4
/* For kernels that round the inputs of products to bfloat16, unlike the recorded ones; and where inputs are rounded to 8
 * bits, some of them to the other side. */
#define ROUNDED 1e-2

typedef struct {
    char name[64];
    int64_t interface, size, pointers, calls, logits, equals; /* bytes of the memory, and counts */
} header;

typedef struct { /* places in the memory; logits: how many floats the call writes */
    int64_t operations, count, call, result, logits;
} recorded;

typedef struct { /* of logits of the case: `count` from `a` on have the bits of those from `b` on */
    int64_t a, b, count;
} equal;

static void *read_all(FILE *file, int64_t bytes) {
    void *found = calloc(bytes + 64, 1);
    if (!found || fread(found, 1, bytes, file) != (size_t)bytes) {
        fprintf(stderr, "the file ends too early\n");
        exit(2);
    }
    return found;
}

int main(int count, char **arguments) {
    void *library = count > 2 ? open_library(arguments[1]) : NULL;
    FILE *file = count > 2 ? fopen(arguments[2], "rb") : NULL;
    if (!library || !file) {
        fprintf(stderr, "replay LIBRARY FILE [KERNELS]: it does not open\n");
        return 2;
    }
    const char *(*choose)(const char *) = (const char *(*)(const char *))find(library, "choose");
    int64_t (*interface)(void) = (int64_t (*)(void))find(library, "interface");
    void (*decode)(void *, int64_t, void *) = (void (*)(void *, int64_t, void *))find(library, "decode");
    const char *kernels = choose(count > 3 ? arguments[3] : NULL);
    if (!kernels) {
        fprintf(stderr, "no %s kernels here\n", arguments[3]);
        return 2;
    }
    const int rounds = !strcmp(kernels, "bf16") || !strcmp(kernels, "amx");
    header h;
    int failed = 0, cases = 0;
    double worst = 0;
    for (; fread(&h, sizeof h, 1, file) == 1; cases++) {
        if (h.interface != interface()) {
            fprintf(stderr, "recorded with another version of the decoder\n");
            return 2;
        }
        char *memory = read_all(file, h.size);
        int64_t *pointers = read_all(file, h.pointers * 8);
        recorded *calls = read_all(file, h.calls * sizeof(recorded));
        float *wanted = read_all(file, h.logits * 4), *found = calloc(h.logits + 1, 4), *next = found;
        equal *equals = read_all(file, h.equals * sizeof(equal));
        for (int64_t i = 0; i < h.pointers; i++) {
            char **pointer = (char **)(memory + pointers[i]);
            *pointer = memory + (int64_t)*pointer;
        }
        for (int64_t i = 0; i < h.calls; i++) {
            decode(memory + calls[i].operations, calls[i].count, memory + calls[i].call);
            memcpy(next, memory + calls[i].result, calls[i].logits * 4);
            next += calls[i].logits;
        }
        double largest = 0, error = 0;
        for (int64_t i = 0; i < h.logits; i++) {
            const double off = fabs((double)found[i] - wanted[i]);
            largest = fmax(largest, fabs(wanted[i]));
            error = off <= error ? error : off; /* NaN stays */
        }
        error /= largest;
        int64_t unequal = 0;
        for (int64_t i = 0; i < h.equals; i++)
            unequal += memcmp(found + equals[i].a, found + equals[i].b, equals[i].count * 4) != 0;
        const int coarse = strstr(h.name, rounds ? "bfloat16" : "+bfloat16") != NULL;
        const int good = error <= (coarse ? ROUNDED : TOLERANCE) && !unequal;
        if (!good) printf("%s: off by %.1e of the largest logit, other bits in %d places\n", h.name, error, (int)unequal);
        failed += !good;
        worst = error <= worst ? worst : error;
        free(memory), free(pointers), free(calls), free(wanted), free(found), free(equals);
    }
    printf("%s kernels: %d passed, %d failed; at most %.1e of the largest logit\n", kernels, cases - failed, failed, worst);
    return failed || !cases;
}
