"""Hugging Face models as backbones, on tiny ones saved in folders: vectors, stages, pixel scale, what is refused."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from combemb.backbones import build
from combemb.backbones.hugging_face import split
from combemb.backbones.resnet18 import ResNet18
from combemb.methods.combemb import CombEmb

TOKENS = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
}
MAPS = {"hidden_sizes": [8, 12, 16], "depths": [1, 1, 2], "num_stages": 3}
CLASSES = {
    "ViT": lambda: transformers.ViTModel(transformers.ViTConfig(**TOKENS)),
    "DINOv2": lambda: transformers.Dinov2Model(transformers.Dinov2Config(**TOKENS)),
    "CLIP": lambda: transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**TOKENS)),
    "SigLIP": lambda: transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**TOKENS)),
    "MAE": lambda: transformers.ViTMAEModel(transformers.ViTMAEConfig(**TOKENS)),
    "I-JEPA": lambda: transformers.IJepaModel(transformers.IJepaConfig(**TOKENS)),
    "ResNet": lambda: transformers.ResNetModel(transformers.ResNetConfig(embedding_size=8, **MAPS)),
    "ConvNeXt": lambda: transformers.ConvNextModel(transformers.ConvNextConfig(**MAPS)),
    "Swin": lambda: transformers.SwinModel(
        transformers.SwinConfig(embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=2, image_size=32)
    ),
}
SPLIT = ["ViT", "DINOv2", "CLIP", "SigLIP", "ResNet", "ConvNeXt"]
VECTORS = {"ViT": lambda out: out.last_hidden_state[:, 0], "I-JEPA": lambda out: out.last_hidden_state.mean(dim=1)}


def save(model: nn.Module, folder: Path, settings: dict | None = None) -> str:
    """Into a folder with an image processor; returns its name as a backbone."""
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings or {"size": {"height": 32, "width": 32}}))
    return f"hf:{folder}"


def saved(kind: str, folder: Path, settings: dict | None = None) -> tuple[nn.Module, str]:
    """A model whose every weight matters, and the name of its folder as a backbone."""
    torch.manual_seed(0)
    model = CLASSES[kind]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model, save(model, folder, settings)


def pixels(height: int, width: int | None = None) -> Tensor:
    return torch.randint(256, (2, 3, height, width or height), generator=torch.Generator().manual_seed(1))


def relative_error(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("kind", ["ViT", "DINOv2", "CLIP", "SigLIP", "I-JEPA", "ResNet", "ConvNeXt", "Swin"])
def test_features_are_the_vector_of_the_model(kind, tmp_path):
    model, name = saved(kind, tmp_path)
    backbone = build(name).eval()
    with torch.no_grad():
        output = model(pixels(32) / 127.5 - 1)
        expected = VECTORS.get(kind, lambda out: out.pooler_output.flatten(1))(output)
        features = backbone(pixels(32))
    assert (backbone.name, backbone.default_size, backbone.has_weights) == (name, 32, True)
    assert features.shape == (2, backbone.n_features)
    assert relative_error(features, expected) < 1e-5
    assert relative_error(features[:1], features[1:]) > 1e-3


@pytest.mark.parametrize("kind", SPLIT)
def test_models_are_split_into_their_layers(kind, tmp_path):
    backbone = build(saved(kind, tmp_path)[1]).eval()
    assert backbone.stage_names == ["embeddings", "layer1", "layer2", "layer3"]
    with torch.no_grad():
        for side in (32, 47):
            before = backbone.before_last(pixels(side))
            assert torch.equal(before, backbone.maps(pixels(side), "layer2"))
            assert torch.equal(backbone.last(before), backbone(pixels(side)))
            assert before.ndim == (4 if kind in ("ResNet", "ConvNeXt") else 3)


@pytest.mark.parametrize("kind", SPLIT)
def test_the_last_stage_can_be_trained_alone(kind, tmp_path):
    model, name = saved(kind, tmp_path)
    backbone = build(name).requires_grad_(False)
    last = backbone.stages["layer3"].requires_grad_(True)
    backbone(pixels(32)).pow(3).sum().backward()
    assert {p for p in backbone.parameters() if p.grad is not None} == set(last.parameters())
    names = {name for name, p in model.named_parameters() if any(torch.equal(p, q) for q in last.parameters())}
    layer = {name for name in names if ".2." in name}  # of the list of layers, which counts from 0
    rest = {name.split(".")[0] for name in names - layer}
    assert len(layer) >= 8
    assert rest <= {"layernorm", "post_layernorm", "head"}
    assert bool(rest) == (kind != "ResNet")  # all others have a norm at the end


def test_every_weight_is_in_some_stage(tmp_path):
    model, name = saved("CLIP", tmp_path)
    assert sum(p.numel() for p in build(name).stages.parameters()) == sum(p.numel() for p in model.parameters())


def test_a_model_of_another_structure_is_one_stage_and_says_so(tmp_path):
    backbone = build(saved("Swin", tmp_path)[1]).eval()
    assert backbone.stage_names == ["model"]
    assert "(model): WholeModel(" in repr(backbone)
    with torch.no_grad():
        assert torch.equal(backbone.before_last(pixels(32)), backbone.normalised(pixels(32)))
        assert torch.equal(backbone.last(backbone.before_last(pixels(32))), backbone(pixels(32)))


def test_a_split_that_does_not_give_the_vector_of_the_model_is_not_believed():
    model, picture = CLASSES["DINOv2"]().eval(), pixels(32) / 127.5 - 1
    with torch.no_grad():
        vectors = model(picture).pooler_output
        assert len(split(model, picture, vectors)) == 4
        assert split(model, picture, vectors * 1.001) is None


@pytest.mark.parametrize("kind", ["ViT", "DINOv2", "CLIP", "SigLIP"])
def test_images_of_other_sizes_are_taken(kind, tmp_path):
    model, name = saved(kind, tmp_path)
    backbone = build(name).eval()
    assert backbone.min_size == 8
    with torch.no_grad():
        features = backbone(pixels(48, 41))
        options = {} if kind == "DINOv2" else {"interpolate_pos_encoding": True}
        output = model(pixels(48, 41) / 127.5 - 1, **options)
        assert backbone(pixels(8)).shape == (2, 16)
    assert relative_error(features, VECTORS.get(kind, lambda out: out.pooler_output)(output)) < 1e-5


def test_a_masked_autoencoder_sees_the_whole_picture(tmp_path):
    backbone = build(saved("MAE", tmp_path)[1]).eval()
    with torch.no_grad():
        assert relative_error(backbone(pixels(32)), backbone(pixels(32))) < 1e-5


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("settings", "mean", "std"),
    [
        ({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}, [25.5, 51, 76.5], [102, 127.5, 153]),
        ({"image_mean": [0, 0, 0], "image_std": [1, 1, 2], "rescale_factor": 0.5}, [0, 0, 0], [2, 2, 4]),
        ({"image_mean": [100, 110, 120], "image_std": [60] * 3, "do_rescale": False}, [100, 110, 120], [60, 60, 60]),
        ({"image_mean": [0.1] * 3, "image_std": [0.2] * 3, "do_normalize": False}, [0, 0, 0], [255, 255, 255]),
        ({"do_resize": True}, [127.5] * 3, [127.5] * 3),
    ],
)
def test_pixels_are_scaled_as_the_processor_says(tmp_path, settings, mean, std, nested):
    name = saved("ViT", tmp_path, settings)[1]
    if nested:  # as processors of pictures and text are saved now
        (tmp_path / "preprocessor_config.json").unlink()
        (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    backbone = build(name)
    assert backbone.mean.flatten().tolist() == pytest.approx(mean)
    assert backbone.std.flatten().tolist() == pytest.approx(std)


def test_without_a_processor_pixels_become_numbers_between_minus_one_and_one(tmp_path):
    name = saved("ViT", tmp_path)[1]
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.warns(UserWarning, match=f"{name} has no image processor; pixels are scaled to -1..1"):
        backbone = build(name)
    ends = torch.tensor([0, 255])[:, None, None, None].expand(2, 3, 32, 32)
    assert backbone.normalised(ends).flatten(1).unique(dim=1).tolist() == [[-1], [1]]
    assert backbone.default_size == 32  # of the model's own configuration


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"size": {"shortest_edge": 64}, "crop_size": {"height": 48, "width": 48}}, 48),
        ({"size": {"shortest_edge": 64}, "crop_size": {"height": 48, "width": 48}, "do_center_crop": False}, 64),
        ({"size": {"height": 40, "width": 56}}, 40),
        ({"size": 24}, 24),
        ({"do_resize": False}, 32),
    ],
)
def test_the_default_size_is_that_after_the_processor(tmp_path, settings, expected):
    assert build(saved("ViT", tmp_path, settings)[1]).default_size == expected


def test_the_vision_half_of_clip_is_taken(tmp_path):
    model, name = saved("CLIP", tmp_path / "vision")
    text = {key: TOKENS[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    both = transformers.CLIPModel(
        transformers.CLIPConfig(text_config={**text, "vocab_size": 9}, vision_config=model.config.to_dict())
    )
    both.vision_model.load_state_dict(model.state_dict())
    half, alone = build(save(both, tmp_path / "both")).eval(), build(name).eval()
    assert half.stage_names == alone.stage_names
    with torch.no_grad():
        assert torch.equal(half(pixels(32)), alone(pixels(32)))


def test_heads_that_are_not_needed_are_passed_over_in_silence(tmp_path, caplog, capfd):
    torch.manual_seed(0)
    classifier = transformers.ViTForImageClassification(transformers.ViTConfig(**TOKENS)).eval()
    name = save(classifier, tmp_path)
    capfd.readouterr()
    verbosity = transformers.utils.logging.get_verbosity()
    backbone = build(name).eval()
    assert transformers.utils.logging.get_verbosity() == verbosity
    assert "LOAD REPORT" not in caplog.text + "".join(capfd.readouterr())
    with torch.no_grad():
        expected = classifier.vit(pixels(32) / 127.5 - 1).last_hidden_state[:, 0]
        assert relative_error(backbone(pixels(32)), expected) < 1e-5


def test_missing_weights_are_refused(tmp_path):
    name = saved("ViT", tmp_path)[1]
    weights = load_file(tmp_path / "model.safetensors")
    lost = next(key for key in weights if "layernorm_before.bias" in key)
    save_file({key: value for key, value in weights.items() if key != lost}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"lack 1 tensors \(.*layernorm_before.bias\)"):
        build(name)


def test_weights_in_half_precision_become_floats(tmp_path):
    torch.manual_seed(0)
    backbone = build(save(CLASSES["ViT"]().half(), tmp_path)).eval()
    assert {p.dtype for p in backbone.parameters()} == {torch.float32}
    with torch.no_grad():
        assert backbone(pixels(32)).dtype == torch.float32


def test_own_weights_come_back_from_a_file(tmp_path):
    name = saved("DINOv2", tmp_path)[1]
    first = build(name)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.mul_(0.5)
    save_file(first.state_dict(), tmp_path / "trained.safetensors")
    again = build(name, weights=str(tmp_path / "trained.safetensors"))
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in first.state_dict().items())


@pytest.mark.parametrize("kind", ["CLIP", "ResNet"])
def test_the_copy_for_inference_gives_the_same_features(kind, tmp_path):
    backbone = build(saved(kind, tmp_path)[1]).eval()
    with torch.no_grad():
        assert relative_error(backbone.for_inference()(pixels(40)), backbone(pixels(40))) < 1e-4


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=rf"cannot load hf:{tmp_path}: .*config.json.*give a model's name on the hub"):
        build(f"hf:{tmp_path}")


def test_a_damaged_file_is_refused(tmp_path):
    name = saved("ViT", tmp_path)[1]
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match=f"cannot load {name}: "):
        build(name)


def test_a_model_that_reads_no_pixels_is_refused(tmp_path):
    text = {key: TOKENS[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    name = save(transformers.CLIPTextModel(transformers.CLIPTextConfig(**text, vocab_size=9)), tmp_path)
    with pytest.raises(ValueError, match="is not a vision model: it reads input_ids, not pixel_values"):
        build(name)


def test_code_beside_the_weights_is_never_run(tmp_path):
    mark = tmp_path / "was_run"
    (tmp_path / "code.py").write_text(f"open({str(mark)!r}, 'w')\nfrom transformers import ViTConfig, ViTModel\n")
    auto_map = {"AutoConfig": "code.ViTConfig", "AutoModel": "code.ViTModel"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "foreign", "auto_map": auto_map}))
    with pytest.raises(ValueError, match=f"cannot load hf:{tmp_path}: .*contains custom code"):
        build(f"hf:{tmp_path}")
    assert not mark.exists()


def test_without_transformers_the_install_line_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"hf:some/model needs transformers .*; pip install combemb\[hf\]"):
        build("hf:some/model")


def test_torchvision_is_not_needed(tmp_path):
    build(saved("ViT", tmp_path)[1])
    assert "torchvision" not in sys.modules


def test_resnet18_computes_what_the_resnet_of_transformers_does():
    ours = ResNet18(width=8).eval()
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 32, 64], depths=[2] * 4, layer_type="basic", hidden_act="relu"
    )
    theirs = transformers.ResNetModel(config).eval().encoder
    state = {}
    for key, value in ours.stages.state_dict().items():
        stage, _, rest = key.partition(".")
        if stage != "stem":
            block, branch, part, tensor = rest.split(".")
            module = ("convolution", "normalization")[int(part) % 3 if branch == "residual" else int(part)]
            place = f"layer.{int(part) // 3}.{module}" if branch == "residual" else f"shortcut.{module}"
            state[f"stages.{int(stage[-1]) - 1}.layers.{block}.{place}.{tensor}"] = value
    theirs.load_state_dict(state)
    x = torch.randn(2, 8, 17, 14)
    with torch.no_grad():
        found = nn.Sequential(*list(ours.stages.values())[1:])(x)
        torch.testing.assert_close(found, theirs(x).last_hidden_state)


@pytest.mark.parametrize("finetune", ["none", "all"])
def test_a_model_that_takes_one_size_says_which(tmp_path, finetune):
    config = transformers.SwinConfig(embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=7, image_size=56)
    name = save(transformers.SwinModel(config), tmp_path, {"size": {"height": 56, "width": 56}})
    x, labels = np.random.default_rng(0).integers(0, 256, (40, 24, 24, 3), np.uint8), np.arange(40) % 6 - 1
    model = CombEmb(bits=4, epochs=1, backbone=name, image_size=24, finetune=finetune)
    with pytest.raises(ValueError, match=r"does not accept images of 24 px \(.*\); set image_size=56, its own"):
        model.fit(x, labels)
    assert model.set_params(image_size=56).fit(x, labels).embed(x).isfinite().all()


def test_nothing_is_printed_while_it_is_loaded(tmp_path, capfd):
    _, name = saved("ViT", tmp_path)
    capfd.readouterr()
    build(name)
    assert capfd.readouterr() == ("", "")
