"""Models that cannot be run, as a user meets them: every one gets a sentence that names file and field, and none a crash.
Each case changes one thing of a sound tiny folder. What the parsers do byte by byte is tested beside them."""

import json
import struct

import pytest
import tiny_folder
from program import launch, ok


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return tiny_folder.make(tmp_path_factory.mktemp("sound") / "model")


@pytest.fixture
def folder(sound, tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    for file in sound.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def edit_json(name, **changes):
    def change(folder):
        content = json.loads((folder / name).read_text())
        content.update(changes)
        (folder / name).write_text(json.dumps(content))

    return change


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def header_of(folder):
    data = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def edit_header(change):
    def apply(folder):
        header, data = header_of(folder)
        header = change(header) or header
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)

    return apply


NORM = "model.norm.weight"


def overlapping(header):
    begin, end = header[NORM]["data_offsets"]
    header[NORM]["data_offsets"] = [begin - 4, end - 4]


def another_shape(header):
    header[NORM]["shape"] = [4, 8]


def another_type(header):
    header[NORM]["dtype"], header[NORM]["shape"] = "I8", [128]


def negative(header):
    header[NORM]["shape"] = [-32]


def huge(header):
    header[NORM]["shape"] = [2**62, 2**62]


def missing(header):
    return {name: entry for name, entry in header.items() if name != "model.layers.1.mlp.up_proj.weight"}


def cut(name, count):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-count])


def not_finite(folder):
    header, data = header_of(folder)
    begin = header["model.layers.0.mlp.up_proj.weight"]["data_offsets"][0]
    whole = (folder / "model.safetensors").read_bytes()
    place = len(whole) - len(data) + begin + 40
    (folder / "model.safetensors").write_bytes(whole[:place] + struct.pack("<f", float("nan")) + whole[place + 4 :])


def only_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


DEEP = "[" * 100_000
CASES = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "config is no JSON": (write("config.json", "{"), "config.json"),
    "config is deep": (write("config.json", DEEP), "nested deeper"),
    "config is a list": (write("config.json", "[]"), "config.json"),
    "architecture": (edit_json("config.json", model_type="gpt_neox"), "gpt_neox"),
    "activation": (edit_json("config.json", hidden_act="gelu"), "hidden_act"),
    "rope": (edit_json("config.json", rope_scaling={"rope_type": "longrope", "factor": 2.0}), "longrope"),
    "negative size": (edit_json("config.json", hidden_size=-32), "hidden_size"),
    "size that is text": (edit_json("config.json", hidden_size="32"), "hidden_size"),
    "enormous size": (edit_json("config.json", vocab_size=2**62), "vocab_size"),
    "heads that do not divide": (edit_json("config.json", num_key_value_heads=3), "num_key_value_heads"),
    "another vocabulary": (edit_json("config.json", vocab_size=400), "model.embed_tokens.weight"),
    "weights cut off": (cut("model.safetensors", 5), "model.safetensors"),
    "header longer than the file": (write("model.safetensors", struct.pack("<Q", 2**63) + b"{}"), "model.safetensors"),
    "header deep": (write("model.safetensors", struct.pack("<Q", len(DEEP)) + DEEP.encode()), "nested deeper"),
    "offsets overlap": (edit_header(overlapping), "overlaps"),
    "shape of another size": (edit_header(another_shape), NORM),
    "type that is none of ours": (edit_header(another_type), NORM),
    "negative shape": (edit_header(negative), NORM),
    "shape that overflows": (edit_header(huge), NORM),
    "a tensor is missing": (edit_header(missing), "model.safetensors"),
    "a weight is not finite": (not_finite, "model.layers.0.mlp.up_proj.weight"),
    "weights as pickle": (only_pickle, "pickle"),
    "index that names no file": (write("model.safetensors.index.json", '{"weight_map": {"model.norm.weight": "../../x.safetensors"}}'), "index.json"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
    "tokenizer deep": (write("tokenizer.json", DEEP), "nested deeper"),
    "tokenizer of another kind": (write("tokenizer.json", '{"model": {"type": "Unigram", "vocab": []}}'), "Unigram"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_model_that_cannot_be_run_gets_a_sentence(folder, case):
    change, says = CASES[case]
    change(folder)
    done = launch("generate", "Hi", "--max-new-tokens", "2", "--model", folder)
    assert done.returncode in (2, 64), (done.returncode, done.stderr)
    assert done.stderr.startswith("error: ") and "please report" not in done.stderr and done.stdout == ""
    assert says in done.stderr, done.stderr
    assert str(folder) in done.stderr


def test_the_sound_folder_runs(sound):
    assert ok("generate", "Hi", "--max-new-tokens", "2", "--model", sound, "--json")


def test_a_model_that_does_not_fit_in_memory_is_refused_before_anything_is_read(tmp_path):
    """Weights of eight terabytes, none of them written: the file is one hole."""
    hidden, vocabulary = 65536, 1 << 20
    layers = 128
    config = dict(model_type="llama", vocab_size=vocabulary, hidden_size=hidden, intermediate_size=hidden, num_hidden_layers=layers,
                  num_attention_heads=512, num_key_value_heads=512, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True)  # fmt: skip
    tiny_folder.make(tmp_path / "model")
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": [vocabulary, hidden], "model.norm.weight": [hidden]}
    for i in range(layers):
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{i}.{name}.weight"] = [hidden]
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
            shapes[f"model.layers.{i}.{name}.weight"] = [hidden, hidden]
    header, place = {}, 0
    for name, shape in shapes.items():
        size = 2
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    try:
        with open(tmp_path / "model/model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + place)
    except OSError as error:
        pytest.skip(f"this file system holds no file of that size: {error}")
    done = launch("generate", "Hi", "--model", tmp_path / "model")
    assert done.returncode == 64, done.stderr
    assert "its weights take" in done.stderr and "of memory are available" in done.stderr


def test_prompts_that_are_empty_or_longer_than_the_context(folder):
    edit_json("config.json", max_position_embeddings=32)(folder)
    for prompt, says in [("", "the prompt is empty"), ("word " * 40, "context holds 32")]:
        for form in ([], ["--raw"]):
            done = launch("generate", prompt, "--max-new-tokens", "2", "--model", folder, *form)
            assert done.returncode == 64 and says in done.stderr, done.stderr


def test_an_unknown_chat_template_is_refused_by_name_and_raw_needs_none(folder):
    template = "{{ bos_token }}[INST] {{ messages[0].content }}"
    edit_json("tokenizer_config.json", chat_template=template)(folder)
    done = launch("generate", "Hi", "--max-new-tokens", "2", "--model", folder)
    assert done.returncode == 64 and "[INST]" in done.stderr and "ChatML" in done.stderr
    ok("generate", "Hi", "--max-new-tokens", "2", "--model", folder, "--raw")
