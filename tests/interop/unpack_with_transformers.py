"""unpack_with_transformers.py PACKED PLAIN: whether transformers' own functions make PLAIN's weights of PACKED's, which
tests/cli/pack_weights.py wrote."""
import json, sys
import torch
from safetensors.torch import load_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

packed, plain = (load_file(folder + "/model.safetensors") for folder in sys.argv[1:])
block = json.load(open(sys.argv[1] + "/config.json"))["quantization_config"].get("weight_block_size")
n = 0
for name, values in packed.items():
    if name.endswith("_blocks"):
        name = name[: -len("_blocks")]
        values = convert_moe_packed_tensors(values, packed[name + "_scales"])
    elif name + "_scale_inv" in packed:
        rows, columns = values.shape
        if block and (rows % block[0] or columns % block[1]):
            continue  # transformers refuses these
        values = Fp8Dequantize(None)._dequantize_one(values, packed[name + "_scale_inv"], torch.bfloat16)
    else:
        continue
    assert values.shape == plain[name].shape and values.dtype == plain[name].dtype == torch.bfloat16, name
    assert torch.equal(values.contiguous().view(torch.int16), plain[name].view(torch.int16)), name
    n += 1
assert n > 3, n
print(f"{n} tensors are equal")
