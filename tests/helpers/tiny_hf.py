"""Small models of transformers with random weights and tokenizers of their own, in folders."""

from __future__ import annotations

import importlib
import json
import string

import torch
import torchvision_shim

torchvision_shim.install()  # before transformers, which imports what torchvision is there

transformers = importlib.import_module("transformers")
image_processors = {
    kind: getattr(
        importlib.import_module(f"transformers.models.{kind}.image_processing_pil_{kind}"),
        f"{kind.capitalize() if kind != 'clip' else 'CLIP'}ImageProcessorPil",
    )
    for kind in ("clip", "siglip", "siglip2")
}

BIAS = 1.5
WIDTHS = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
_PICTURE = {"image_size": 32, "patch_size": 8, "num_hidden_layers": 2}
_WORDS = ("a", "photo", "this", "is", "of", "cat", "dog", "bell", "two", "tables", "snow", "night")


def save_model(folder, kind="clip", seed=0, **settings):
    """A model of this kind, its tokenizer and the settings of its image processor in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = TOKENIZERS[kind](folder)
    build_model(kind, len(tokenizer), tokenizer.eos_token_id, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    image_processors[kind](**(PROCESSORS[kind] | settings)).save_pretrained(folder)
    return folder


def build_model(kind, vocabulary, end, seed=0):
    text = WIDTHS | {"vocab_size": vocabulary, "num_hidden_layers": 2}
    text |= {"eos_token_id": end, "bos_token_id": None, "pad_token_id": None}
    picture = WIDTHS | _PICTURE
    if kind == "clip":
        text |= {"max_position_embeddings": 77, "projection_dim": 24}
        picture |= {"projection_dim": 24}
        config = transformers.CLIPConfig(text_config=text, vision_config=picture, projection_dim=24)
    else:
        text |= {"max_position_embeddings": 64}
        if kind == "siglip2":
            picture = {key: value for key, value in picture.items() if key != "image_size"}
            picture |= {"num_patches": 16}
        config = getattr(transformers, f"{kind.capitalize()}Config")(
            text_config=text, vision_config=picture
        )
    torch.manual_seed(seed)
    model = getattr(transformers, type(config).__name__.replace("Config", "Model"))(config)
    with torch.no_grad():
        for parameter in model.parameters():  # as they are drawn, all texts are nearly alike
            parameter.copy_(torch.randn_like(parameter) * 0.3)
        model.logit_scale.fill_(3.0)
        if kind != "clip":
            model.logit_bias.fill_(BIAS)
    return model.eval()


PROCESSORS = {
    "clip": {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
    "siglip": {"size": {"height": 32, "width": 32}},
    "siglip2": {"patch_size": 8, "max_num_patches": 16},
}
transformers.utils.logging.set_verbosity_error()  # sizes of this kind are warned of
transformers.utils.logging.disable_progress_bar()


def _clip_tokenizer(folder):
    """CLIP's tokenizer with all bytes, inside and at the end of words, and a few words."""
    letters = list(_byte_letters())
    pieces = [*letters, *(f"{letter}</w>" for letter in letters)]
    merges = []
    for word in _WORDS:
        whole, *rest = [*word[:-1], f"{word[-1]}</w>"]
        for piece in rest:
            if (whole, piece) not in merges:
                merges.append((whole, piece))
            whole += piece
            if whole not in pieces:
                pieces.append(whole)
    pieces += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    return transformers.CLIPTokenizer(vocabulary, merges, model_max_length=77)


def _siglip_tokenizer(folder):
    """SigLIP's tokenizer, of sentencepiece, trained on a few words."""
    import sentencepiece

    text = folder / "text.txt"
    text.write_text(f"{' '.join(_WORDS * 20)}\n{' '.join(string.ascii_lowercase)}\n" * 5)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(folder / "spiece"),
        vocab_size=100,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    text.unlink()
    return transformers.SiglipTokenizer(str(folder / "spiece.model"), model_max_length=64)


def _siglip2_tokenizer(folder):
    """SigLIP 2's tokenizer: bytes where it knows no piece."""
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *string.printable.strip()]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}
    return transformers.Siglip2Tokenizer(vocabulary, [], model_max_length=64)


def _byte_letters():
    """The letters that byte-level tokenizers write bytes as."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


TOKENIZERS = {"clip": _clip_tokenizer, "siglip": _siglip_tokenizer, "siglip2": _siglip2_tokenizer}


def change_json(path, **values):
    """Write some values into a JSON file; None removes one."""
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
