/* SPDX-License-Identifier: MIT
 *
 * The metadata of a PyTorch checkpoint (a pickle), or one piece of its files (a zip archive with a pickle). The first
 * byte says which: 'M' stands for the metadata.
 */
#include "checkpoint/dcp/item.h"
#include "checkpoint/dcp/metadata.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tt_dcp_metadata metadata;
    struct tt_dcp_tensor tensor;
    struct tt_stretch archive = {.path = "fuzz", .fd = -1, .memory = data + 1, .bytes = (int64_t)size - 1};
    double number;

    if (size == 0)
        return 0;
    if (data[0] == 'M') {
        if (tt_dcp_metadata_parse("fuzz", data + 1, size - 1, &metadata) == 0)
            tt_dcp_metadata_release(&metadata);
        return 0;
    }
    (void)!tt_dcp_tensor_find(&archive, "w", &tensor);
    (void)!tt_dcp_number_read(&archive, "n", &number);
    return 0;
}
