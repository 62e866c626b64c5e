/* SPDX-License-Identifier: MIT
 *
 * Processors without AMX raise SIGILL at its instructions. The handler decodes them, carries them out on the emulated
 * tiles of amx_tile.h and continues after them. So a test runs the instructions that the compiler emitted.
 */
#define TT_AMX_EMULATED
#include "tests/kernels/amx_trap.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ucontext.h>

#include "core/kernels/vector/amx_tile.h"

/* An instruction of AMX: C4, two bytes of the VEX prefix, opcode, ModRM, and for memory SIB and displacement. */
struct instruction {
    int prefix; /* VEX.pp: 0 none, 1 66, 2 F3, 3 F2 */
    int opcode; /* of the map 0F38 */
    unsigned mod, reg, rm, vvvv;
    int64_t address, stride; /* of a memory operand; stride: index times scale */
    int length;
};

static struct amx_trap_counts counts;

static int64_t value_of(const greg_t *registers, int number)
{
    static const int places[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                   REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

    return registers[places[number]];
}

static int64_t displacement(const uint8_t *at, int bytes)
{
    int32_t word = 0;

    if (bytes == 1)
        return (int8_t)*at;
    if (bytes == 4)
        memcpy(&word, at, sizeof word);
    return word;
}

/* Reads the memory operand; x.length is the length up to ModRM. */
static void decode_memory(struct instruction *x, const uint8_t *code, const greg_t *registers)
{
    int upper_index = code[1] & 0x40 ? 0 : 8, upper_base = code[1] & 0x20 ? 0 : 8;
    int bytes = x->mod == 1 ? 1 : x->mod == 2 ? 4 : 0, base = x->rm;

    if (x->rm == 4) {
        int sib = code[x->length++], index = (sib >> 3 & 7) + upper_index;

        base = sib & 7;
        x->stride = index == 4 ? 0 : value_of(registers, index) * (INT64_C(1) << (sib >> 6));
    }
    if (base == 5 && x->mod == 0) {
        x->address = displacement(code + x->length, 4);
        x->length += 4;
        if (x->rm == 5) /* relative to the next instruction */
            x->address += registers[REG_RIP] + x->length;
        return;
    }
    x->address = value_of(registers, base + upper_base) + displacement(code + x->length, bytes);
    x->length += bytes;
}

static bool decode(struct instruction *x, const uint8_t *code, const greg_t *registers)
{
    if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || code[2] & 0x84)
        return false;
    *x = (struct instruction){.prefix = code[2] & 3,
                              .opcode = code[3],
                              .mod = code[4] >> 6,
                              .reg = code[4] >> 3 & 7,
                              .rm = code[4] & 7,
                              .vvvv = ~code[2] >> 3 & 15,
                              .length = 5};
    if (x->mod != 3)
        decode_memory(x, code, registers);
    return true;
}

/* Whether the 64 bytes ask for eight tiles of 16 rows of 64 bytes. */
static bool asks_for_all(const uint8_t *config)
{
    uint8_t want[64] = {1};

    for (int i = 0; i < 8; i++) {
        want[16 + 2 * i] = TILE_BYTES;
        want[48 + i] = TILE_LINES;
    }
    return memcmp(config, want, sizeof want) == 0;
}

/* False if it is not an instruction that the kernel should contain. */
static bool carry_out(const struct instruction *x)
{
    void *memory = (void *)(uintptr_t)x->address;

    if (x->opcode == 0x49 && x->prefix == 0 && x->mod != 3) { /* LDTILECFG */
        if (!asks_for_all(memory))
            return false;
        counts.configured++;
        tile_configure();
    } else if (x->opcode == 0x49 && x->prefix == 0 && x->reg == 0 && x->rm == 0) { /* TILERELEASE */
        counts.released++;
        tile_release();
    } else if (x->opcode == 0x49 && x->prefix == 3 && x->mod == 3) { /* TILEZERO */
        TILE_ZERO(x->reg);
    } else if (x->opcode == 0x4b && x->prefix == 3 && x->rm == 4) { /* TILELOADD */
        counts.loads++;
        tile_load(x->reg, memory, x->stride);
    } else if (x->opcode == 0x4b && x->prefix == 2 && x->rm == 4) { /* TILESTORED */
        tile_store(x->reg, memory, x->stride);
    } else if (x->opcode == 0x5c && x->prefix == 2 && x->mod == 3) { /* TDPBF16PS */
        counts.dots++;
        tile_dot(x->reg, x->rm, x->vvvv);
    } else {
        return false;
    }
    return true;
}

static void trapped(int signal_number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *code = (const uint8_t *)(uintptr_t)registers[REG_RIP];
    struct instruction x;

    (void)info;
    if (decode(&x, code, registers) && carry_out(&x)) {
        registers[REG_RIP] += x.length;
        return;
    }
    (void)fprintf(stderr, "# not an instruction of the kernel: %02x %02x %02x %02x %02x\n", code[0], code[1], code[2],
                  code[3], code[4]);
    (void)signal(signal_number, SIG_DFL); /* then the instruction runs again */
}

void amx_trap_begin(void)
{
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};

    if (sigaction(SIGILL, &action, NULL) < 0)
        abort();
}

struct amx_trap_counts amx_trap_end(void)
{
    struct amx_trap_counts done = counts;

    (void)signal(SIGILL, SIG_DFL);
    memset(&counts, 0, sizeof counts);
    return done;
}

bool amx_trap_works(void)
{
    amx_trap_begin();
    __asm__ volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0" ::: "memory"); /* TILERELEASE */
    return amx_trap_end().released == 1;
}
