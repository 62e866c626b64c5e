/* SPDX-License-Identifier: MIT
 *
 * A safetensors file from an unknown source: header length, header, tensor table.
 */
#include "checkpoint/format/safetensors.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tt_safetensors file;

    if (tt_safetensors_parse("fuzz", data, size, (int64_t)size, &file) == 0) {
        (void)tt_safetensors_find(&file, "w");
        (void)tt_safetensors_metadata(&file, "format");
        tt_safetensors_release(&file);
    }
    return 0;
}
