"""pack_weights.py FOLDER METHOD PACKED PLAIN: from a Hugging Face folder, writes two folders with the same weights. In
PACKED, matrices are packed as in published folders, in FP8 blocks or, for gpt-oss's experts, in MXFP4; PLAIN holds
their values in bfloat16, computed as DeepSeek's and OpenAI's scripts do. The elements are random bits; the rest of the
weights is copied. METHOD is fp8 (blocks of 128), fp8-small (of 16 by 8), fp8-bf16 (scales in bfloat16), fp8-e8m0
(exponents), fp8-one (one scale for a matrix), mxfp4, or bitsandbytes' nf4 (factors quantized too), nf4-f32 (its bytes
stored as float32), nf4-qlora (with the tables and blocks of QLoRA, read as float32), nf4-plain, or int8, which means
float32."""
import json, math, os, random, struct, sys

folder, method, packed, plain = sys.argv[1:]
rng = random.Random(7)


def load(path):
    data = open(path, "rb").read()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    at = {name: (8 + size + entry["data_offsets"][0], 8 + size + entry["data_offsets"][1])
          for name, entry in header.items()}
    return {name: (entry["dtype"], entry["shape"], data[at[name][0] : at[name][1]]) for name, entry in header.items()}


def save(path, tensors):
    header, parts, at = {}, [], 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bf16(x):
    """The bits of the nearest bfloat16 of a float32, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF


def e4m3(bits):
    exponent, fraction = bits >> 3 & 15, bits & 7
    value = math.ldexp(1 + fraction / 8, exponent - 7) if exponent else math.ldexp(fraction / 8, -6)
    return -value if bits & 128 else value


FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
FP4 += [-x for x in FP4]


def fp8(name, rows, columns):
    """A random matrix with its scales; and its values in bfloat16."""
    block = {"fp8-small": (16, 8), "fp8-one": (rows, columns)}.get(method, (128, 128))
    bits = bytes(rng.choice([b for b in range(256) if b & 127 != 127]) for _ in range(rows * columns))
    grid = -(-rows // block[0]), -(-columns // block[1])
    scales = [f32(rng.uniform(1e-4, 4e-4)) for _ in range(grid[0] * grid[1])]
    dtype, raw = "F32", struct.pack(f"<{len(scales)}f", *scales)
    if method == "fp8-bf16":
        raw = struct.pack(f"<{len(scales)}H", *map(bf16, scales))
        scales = [struct.unpack("<f", struct.pack("<I", bf16(s) << 16))[0] for s in scales]
        dtype = "BF16"
    if method == "fp8-e8m0":
        exponents = [rng.randrange(112, 118) for _ in scales]
        scales, dtype, raw = [2.0 ** (e - 127) for e in exponents], "F8_E8M0", bytes(exponents)
    values = [bf16(f32(e4m3(bits[r * columns + c]) * scales[r // block[0] * grid[1] + c // block[1]]))
              for r in range(rows) for c in range(columns)]
    return {name: ("F8_E4M3", [rows, columns], bits),
            name + "_scale_inv": (dtype, [] if method == "fp8-one" else list(grid), raw)}, values


def mxfp4(name, experts, rows, columns):
    """Matrices [in, out], as elements of [out, in]."""
    blocks = bytes(rng.randrange(256) for _ in range(experts * columns * rows // 2))
    scales = bytes(rng.randrange(118, 124) for _ in range(len(blocks) // 16))
    values = [0] * (experts * rows * columns)
    for i in range(len(values)):
        expert, rest = divmod(i, rows * columns)
        column, row = divmod(rest, rows)
        nibble = blocks[i // 2] >> 4 if i % 2 else blocks[i // 2] & 15
        values[(expert * rows + row) * columns + column] = bf16(FP4[nibble] * 2.0 ** (scales[i // 32] - 127))
    shape = [experts, columns, rows // 32]
    return {name + "_blocks": ("U8", shape + [16], blocks), name + "_scales": ("U8", shape, scales)}, values


def floats(numbers):
    return struct.pack(f"<{len(numbers)}f", *numbers)


NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
       0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]


def dynamic():
    """bitsandbytes' table of 256 numbers for factors; test_packing compares titan's with theirs. Seven decades, the
    smallest one first, contain 1 to 64 numbers, which are the middles of equal parts."""
    numbers = []
    for decade in range(7):
        n, first = 1 << decade, f32(0.1)
        step = f32(f32(1.0 - first) / n)
        # torch.linspace(0.1, 1, n + 1)
        ends = [f32(first + f32(step * i)) if i < (n + 1) // 2 else f32(1.0 - f32(step * (n - i)))
                for i in range(n + 1)]
        numbers += [f32(f32(10.0 ** (decade - 6)) * f32(f32(a + b) / 2)) for a, b in zip(ends, ends[1:])]
    return [-x for x in reversed(numbers)] + [0.0] + numbers + [1.0]


def four_bit(name, rows, columns):
    """A matrix in blocks of 64 elements, whose factors are quantized in blocks of 8 or 256; and its values in
    bfloat16."""
    n, block, outer = rows * columns, 64, 256 if method == "nf4-qlora" else 8
    blocks = -(-n // block)
    bits = bytes(rng.randrange(256) for _ in range(-(-n // 2)))
    table = NF4 if method == "nf4-qlora" else sorted(f32(rng.uniform(-1, 1)) for _ in range(16))
    state = {"quant_type": "nf4", "blocksize": block, "shape": [rows, columns],
             "dtype": "float32" if method == "nf4-qlora" else "bfloat16"}
    more = {}
    if method != "nf4-plain":
        numbers = bytes(rng.randrange(256) for _ in range(blocks))
        map_ = dynamic() if method == "nf4-qlora" else [f32(rng.uniform(-1, 1)) for _ in range(256)]
        large = [f32(rng.uniform(0.1, 0.2)) for _ in range(-(-blocks // outer))]
        offset = f32(0.15)
        absmax = [f32(f32(map_[b] * large[i // outer]) + offset) for i, b in enumerate(numbers)]
        state.update(nested_blocksize=outer, nested_dtype="float32", nested_offset=offset)
        more = {".absmax": ("U8", [blocks], numbers), ".nested_absmax": ("F32", [len(large)], floats(large)),
                ".nested_quant_map": ("F32", [256], floats(map_))}
    else:
        absmax = [f32(rng.uniform(0.1, 0.3)) for _ in range(blocks)]
        more = {".absmax": ("F32", [blocks], floats(absmax))}
    text = json.dumps(state).encode()
    numbers = [bits[i // 2] & 15 if i % 2 else bits[i // 2] >> 4 for i in range(n)]
    values = [bf16(f32(table[numbers[i]] * absmax[i // block])) for i in range(n)]
    storage, item = ("F32", 4) if method == "nf4-f32" else ("U8", 1)  # bnb_4bit_quant_storage
    made = {name: (storage, [len(bits) // item, 1], bits), name + ".quant_map": ("F32", [16], floats(table)),
            name + ".quant_state.bitsandbytes__nf4": ("U8", [len(text)], text)}
    return {**made, **{name + end: t for end, t in more.items()}}, values


def int8(name, rows, columns):
    bits = bytes(rng.randrange(256) for _ in range(rows * columns))
    scales = [f32(rng.uniform(0.1, 0.3)) for _ in range(rows)]
    numbers = struct.unpack(f"<{len(bits)}b", bits)
    values = [f32(f32(x * scales[i // columns]) * f32(7.874015718698502e-3)) for i, x in enumerate(numbers)]
    layer = name[: -len("weight")]
    return {name: ("I8", [rows, columns], bits), layer + "SCB": ("F32", [rows], floats(scales)),
            layer + "weight_format": ("U8", [], bytes(1))}, values


is_bnb = method in ("nf4", "nf4-plain", "nf4-f32", "nf4-qlora", "int8")
tensors, few, many = load(folder + "/model.safetensors"), {}, {}
config = json.load(open(folder + "/config.json"))
if method == "mxfp4":  # rows of whole blocks: all sizes of gpt_oss but the vocabulary and the experts, times 8 / 5
    for key in ("hidden_size", "intermediate_size", "head_dim"):
        config[key] = config[key] * 8 // 5
    for name, (dtype, shape, _) in tensors.items():
        shape = [n * 8 // 5 if n % 20 == 0 else n for n in shape]
        data = [rng.gauss(0, 0.1) for _ in range(math.prod(shape))]
        tensors[name] = (dtype, shape, struct.pack(f"<{len(data)}f", *data))
for name, (dtype, shape, data) in tensors.items():
    if method == "mxfp4" and name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        made, values = mxfp4(name, *shape)
    elif method != "mxfp4" and len(shape) == 2 and name.endswith("_proj.weight"):
        made, values = (int8 if method == "int8" else four_bit if is_bnb else fp8)(name, *shape)
    else:
        few[name] = many[name] = (dtype, shape, data)
        continue
    few.update(made)
    many[name] = ("F32", shape, floats(values)) if method == "int8" else (
        "BF16", shape, struct.pack(f"<{len(values)}H", *values))
quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]} if method == "mxfp4" else {
    "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
    "weight_block_size": {"fp8-small": [16, 8], "fp8-one": None}.get(method, [128, 128])}
if is_bnb:
    quantization = {"quant_method": "bitsandbytes", "load_in_4bit": method != "int8", "load_in_8bit": method == "int8"}
for to, weights, more in (packed, few, {"quantization_config": quantization}), (plain, many, {}):
    os.mkdir(to)
    save(to + "/model.safetensors", weights)
    json.dump({**config, **more}, open(to + "/config.json", "w"))
