"""vLLM's kernels in a trace: packed products are judged by the weight before it was packed, attention over pages by the keys and values that were
written, rotation by its table. The kernels here are stand-ins of the same schemas, so that no vLLM is needed; clients_vllm_test.py has the real ones. What
could not be judged is in the verdict."""

import pytest
import torch

import faultline

HEADS, KV_HEADS, SIZE, PAGE = 4, 2, 16, 8
WIDTH = HEADS * SIZE
PACKED: dict[int, torch.Tensor] = {}
broken: set[str] = set()  # which stand-ins err


@pytest.fixture(scope="module", autouse=True)
def kernels():
    if hasattr(torch.ops._C, "onednn_mm"):
        pytest.skip("vLLM is loaded")
    library = torch.library.Library("_C", "DEF")
    library.define("onednn_mm(Tensor! c, Tensor a, Tensor? bias, Tensor handler_tensor) -> ()")
    library.define("rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache, bool is_neox) -> ()")
    library.define("cpu_attn_reshape_and_cache(Tensor key, Tensor value, Tensor(a2!) key_cache, Tensor(a3!) value_cache, Tensor slot_mapping, str isa) -> ()")
    library.define("cpu_attention_with_kv_cache(Tensor query, Tensor key_cache, Tensor value_cache, Tensor(a3!) output, Tensor query_start_loc, Tensor seq_lens, float scale, "
                   "bool causal, Tensor? alibi_slopes, SymInt sliding_window_left, SymInt sliding_window_right, Tensor block_table, float softcap) -> ()")
    library.define("mystery(Tensor x) -> Tensor")
    for name, function in (("onednn_mm", product), ("rotary_embedding", turn), ("cpu_attn_reshape_and_cache", write), ("cpu_attention_with_kv_cache", attend), ("mystery", lambda x: x * 1)):
        library.impl(name, function, "CPU")
    yield
    library._destroy()


def product(c, a, bias, handler):
    y = a.float() @ PACKED[int(handler)].float()
    c.copy_(y * (1.05 if "product" in broken else 1) + (0 if bias is None else bias.float()))


def turn(positions, query, key, size, table, neox):
    for x in (query, key):
        halves = x.float().view(len(x), -1, 2, size // 2)
        cos, sin = table.float()[positions].view(len(x), 1, 2, -1).unbind(2)
        a, b = halves.unbind(2)
        x.copy_(torch.stack((a * cos - b * sin, b * cos + a * sin * (1.2 if "rotation" in broken else 1)), 2).view(x.shape))


def write(key, value, keys, values, slots, isa):
    """In a layout that nobody else knows."""
    for row, slot in enumerate(slots.tolist()):
        keys[slot // PAGE, :, slot % PAGE] = -key[row].flip(-1)
        values[slot // PAGE, :, slot % PAGE] = -value[row].flip(-1)
    if "write" in broken:
        keys[3, :, 1] = 0  # a page of the first sequence


def attend(query, keys, values, output, begins, lengths, scale, causal, slopes, left, right, pages, cap):
    for sequence, length in enumerate(lengths.tolist()):
        begin, end = begins[sequence : sequence + 2].tolist()
        slots = [int(pages[sequence, key // PAGE]) * PAGE + key % PAGE for key in range(length)]
        k, v = (torch.stack([-x[slot // PAGE, :, slot % PAGE].flip(-1) for slot in slots], 1).float().repeat_interleave(HEADS // KV_HEADS, 0) for x in (keys, values))
        for row in range(begin, end):
            seen = length - (end - row) + 1
            first = 0 if left < 0 else max(0, seen - 1 - left)
            chances = torch.softmax(torch.einsum("hd,hkd->hk", query[row].float(), k[:, first:seen]) * scale, -1)
            output[row] = torch.einsum("hk,hkd->hd", chances, v[:, first:seen]) * (1.1 if "attention" in broken else 1)


class Packed(torch.nn.Module):
    """A linear as vLLM leaves it on a CPU."""

    def __init__(self, width, out, keeps=True):
        super().__init__()
        weight = torch.randn(out, width).bfloat16() * 0.1
        handler = torch.tensor([len(PACKED)])
        PACKED[int(handler)] = weight.t().contiguous()
        self.weight = torch.nn.Parameter(torch.empty(0))
        if keeps:
            vars(self)["faultline_weight"] = weight
        self.out, self.output_partition_sizes = out, [WIDTH, KV_HEADS * SIZE, KV_HEADS * SIZE] if out > WIDTH else [out]

        def run(x):
            y = torch.empty(len(x), out, dtype=x.dtype)
            torch.ops._C.onednn_mm(y, x, None, handler)
            return y

        self.cpu_linear = run  # `handler` is in its closure

    def forward(self, x):
        return self.cpu_linear(x)


class Attention(torch.nn.Module):
    def __init__(self, keeps, window):
        super().__init__()
        self.qkv_proj, self.o_proj, self.window = Packed(WIDTH, WIDTH + 2 * KV_HEADS * SIZE, keeps), Packed(WIDTH, WIDTH, keeps), window
        angles = torch.arange(64)[:, None] / 100 ** (torch.arange(SIZE // 2) / 8)
        self.table = torch.cat((angles.cos(), angles.sin()), 1).bfloat16()
        self.cache = torch.zeros(2, 6, KV_HEADS, PAGE, SIZE).bfloat16()

    def forward(self, x, positions, begins, lengths, slots, pages):
        q, k, v = self.qkv_proj(x).split(self.qkv_proj.output_partition_sizes, 1)
        q, k = q.contiguous(), k.contiguous()
        torch.ops._C.rotary_embedding(positions, q, k, SIZE, self.table, True)
        keys, values = self.cache.unbind(0)
        torch.ops._C.cpu_attn_reshape_and_cache(k.view(len(x), KV_HEADS, SIZE), v.reshape(len(x), KV_HEADS, SIZE), keys, values, slots, "vec")
        out = torch.empty(len(x), HEADS, SIZE, dtype=x.dtype)
        torch.ops._C.cpu_attention_with_kv_cache(q.view(len(x), HEADS, SIZE), keys, values, out, begins, lengths, SIZE**-0.5, True, None, self.window, -1 if self.window < 0 else 0, pages, 0.0)
        return self.o_proj(out.view(len(x), WIDTH))


class Model(torch.nn.Module):
    def __init__(self, keeps=True, window=-1, mystery=False):
        super().__init__()
        torch.manual_seed(3)
        self.embed_tokens, self.self_attn, self.mystery = torch.nn.Embedding(50, WIDTH).bfloat16(), Attention(keeps, window), mystery

    def forward(self, input_ids, positions, **rest):
        x = self.self_attn(self.embed_tokens(input_ids), positions, **rest)
        return torch.ops._C.mystery(x) if self.mystery else x


def record(to, *, detail="sample", error=(), decode=False, **options):
    """Two sequences of 11 and 5 tokens, packed, with pages out of order; then, where asked, a token of each."""
    model = Model(**options)
    broken.clear()
    broken.update(error)
    draw = torch.Generator().manual_seed(1)
    pages, lengths = torch.tensor([[3, 1], [2, 5]], dtype=torch.int32), [11, 5]
    slot = lambda sequence, key: int(pages[sequence, key // PAGE]) * PAGE + key % PAGE  # noqa: E731
    with faultline.trace(model, to, detail=detail), torch.no_grad():
        places = [(sequence, key) for sequence in (0, 1) for key in range(lengths[sequence])]
        ids, positions = torch.randint(50, (16,), generator=draw), torch.tensor([key for _, key in places])
        model(input_ids=ids, positions=positions, begins=torch.tensor([0, 11, 16], dtype=torch.int32),
              lengths=torch.tensor(lengths, dtype=torch.int32), slots=torch.tensor([slot(*place) for place in places]), pages=pages)
        ids.zero_(), positions.fill_(3)  # engines keep them in buffers
        if decode:
            model(input_ids=torch.randint(50, (2,), generator=draw), positions=torch.tensor(lengths), begins=torch.tensor([0, 1, 2], dtype=torch.int32),
                  lengths=torch.tensor(lengths, dtype=torch.int32) + 1, slots=torch.tensor([slot(0, 11), slot(1, 5)]), pages=pages)
    broken.clear()
    return to


@pytest.mark.parametrize("detail", ["sample", "full"])
@pytest.mark.parametrize("options", [{}, {"decode": True}, {"window": 3}])
def test_kernels_of_an_engine_are_judged_and_clean_ones_are_right(tmp_path, detail, options):
    record(tmp_path / "a", detail=detail, **options)
    found = faultline.compare(tmp_path / "a", tmp_path / "a")
    assert found["verdict"] == "within_rounding", found["sentence"]
    assert found["a"]["share_judged"] == 1 and found["a"]["blind"] == 0
    assert found["a"]["judged"] == 7 * (2 if options.get("decode") else 1)  # embedding, two products, two copies, rotation, attention
    assert {one["place"] for one in found["places"]} == {f"self_attn.{name}_proj" for name in "qkvo"}


@pytest.mark.parametrize("detail", ["sample", "full"])
@pytest.mark.parametrize("error, operator", [("product", "_C::onednn_mm"), ("rotation", "_C::rotary_embedding"), ("attention", "_C::cpu_attention_with_kv_cache"), ("write", "_C::cpu_attention_with_kv_cache")])
def test_a_kernel_that_errs_is_named(tmp_path, detail, error, operator):
    record(tmp_path / "a", detail=detail)
    record(tmp_path / "b", detail=detail, error=(error,))
    found = faultline.compare(tmp_path / "a", tmp_path / "b")
    assert [(one["side"], one["operator"]) for one in found["first"]] == [("b", operator)], found["sentence"]


def test_what_cannot_be_judged_is_in_the_verdict(tmp_path):
    record(tmp_path / "a")
    record(tmp_path / "b", keeps=False)  # packed weights whose original nobody kept
    found = faultline.compare(tmp_path / "a", tmp_path / "b")
    assert found["verdict"] == "partly_judged" and "2 _C::onednn_mm: not kept" in found["sentence"], found["sentence"]
    assert found["b"]["blind"] == 2 and found["b"]["share_judged"] == pytest.approx(5 / 7) and "b shows no products" in found["sentence"]
    record(tmp_path / "c", mystery=True)  # no family: counted, and the verdict stands
    found = faultline.compare(tmp_path / "a", tmp_path / "c")
    assert found["verdict"] == "within_rounding" and found["b"]["not_judged"] == {"_C::mystery: not kept": 1}, found["sentence"]
    assert "7 of 8" in found["sentence"]
