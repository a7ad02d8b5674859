#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exports many architectures from PyTorch, compiles each and trains it for three
steps beside PyTorch; prints docs/coverage/models.csv (maintainers).

usage: zoo.py AMPC [options] [NAME...]               names by their beginning

Both exporters, fp32 and bf16, SGD on one batch, dropout off, random weights;
what the columns are stands in docs/coverage.md.  Models are narrow and shallow: of
blocks with equal shapes that follow each other one stays.  Models with BatchNorm
load PyTorch's weights before every step, since in two to four samples nothing
else would be comparable; the others train freely.  --slow adds those that take
minutes.  Networks of its own: networks.py.  Needs (as of which the table was made)

    pip install torch==2.11.0 torchvision==0.26.0 timm==1.0.31 \\
        transformers==5.23.0 diffusers==0.42.1 onnx==1.23.2 onnxscript==0.7.2 \\
        safetensors==0.8.0
"""
import argparse
import copy
import csv
import inspect
import json
import logging
import math
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # forked processes have no others
    os.environ["AMPC_CACHE_DIR"] = "none"  # compile times are of compiling

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from networks import (CLASSES, VOCABULARY, Calls, Features, Loss, images, maps,
                      own, pictures, sentences, tokens)

STEPS, RATE = 3, 0.05
EXPORTERS = ("dynamo", "torchscript")
LIMIT = 1e-4  # of the fp32 loss


def thin(model, keep=1):
    """Drops the blocks whose shapes are those of `keep` before them."""
    def shapes(m):
        return type(m), [(k, v.shape) for k, v in m.state_dict().items()]

    for m in model.modules():
        if not isinstance(m, (nn.Sequential, nn.ModuleList)):
            continue
        kept, run = [], 0
        for name, child in m._modules.items():
            same = kept and shapes(child)[1] and \
                shapes(child) == shapes(kept[-1][1])
            run = run + 1 if same else 1
            if run <= keep:
                kept.append((name, child))
        m._modules.clear()
        if isinstance(m, nn.ModuleList):
            kept = [(str(i), child) for i, (_, child) in enumerate(kept)]
        m._modules.update(kept)
    return model


def calm(model):
    """No dropout of any kind."""
    for m in model.modules():
        for name in ("p", "drop_prob", "dropout", "drop_path_rate",
                     "attn_drop_p", "dropout_p", "attention_dropout",
                     "activation_dropout"):
            if isinstance(getattr(m, name, None), float):
                setattr(m, name, 0.)
    return model


# ---- torchvision


def vision(name, size=32, keep=1, **how):
    def make():
        import torchvision
        model = getattr(torchvision.models, name)
        return Loss(thin(model(num_classes=CLASSES, **how), keep))
    # With three pictures one activation of RegNetY is 7e-7 from ReLU's kink.
    return "tv_" + name, make, images(size, 4 if "regnet" in name else 3)


def vision_parts(name, make, data):
    def build():
        import torchvision
        return make(torchvision.models)
    return "tv_" + name, build, data


def convnext(m):
    from torchvision.models.convnext import CNBlockConfig as C
    return m.ConvNeXt([C(16, 32, 1), C(32, 48, 1), C(48, None, 1)], 0.,
                      num_classes=CLASSES)


def pyramid(m):
    from torchvision.ops import FeaturePyramidNetwork

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            body = thin(m.resnet18())
            self.stem = nn.Sequential(body.conv1, body.bn1, body.relu,
                                      body.maxpool)
            self.layers = nn.ModuleList([body.layer1, body.layer2,
                                         body.layer3])
            self.fpn = FeaturePyramidNetwork([64, 128, 256], 16)
            self.box, self.kind = nn.Conv2d(16, 12, 3), nn.Conv2d(16, 21, 3)

        def forward(self, x):
            x, levels = self.stem(x), {}
            for i, layer in enumerate(self.layers):
                x = layer(x)
                levels[str(i)] = x
            levels = self.fpn(levels).values()
            return [f(F.pad(v, (1, 1, 1, 1))) for v in levels
                    for f in (self.box, self.kind)]
    return Features(Detector())


def torchvision_models():
    yield vision_parts("alexnet", lambda m: Loss(m.AlexNet(CLASSES, 0.)),
                       images(64, 2))
    yield vision_parts("vgg_bn", lambda m: Loss(nn.Sequential(
        m.vgg.make_layers([16, "M", 32, "M", 32, "M"], True), nn.Flatten(),
        nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, CLASSES))), images(32, 2))
    for name, size in {
            "resnet18": 32, "resnet50": 32, "resnext50_32x4d": 32,
            "wide_resnet50_2": 32, "squeezenet1_1": 32, "mobilenet_v2": 32,
            "mobilenet_v3_small": 32, "mobilenet_v3_large": 32,
            "shufflenet_v2_x0_5": 64, "mnasnet0_5": 64, "regnet_y_400mf": 64,
            "regnet_x_400mf": 64, "efficientnet_b0": 32,
            "efficientnet_v2_s": 32}.items():
        width = dict(width_mult=.5) if "mobilenet" in name else {}
        yield vision(name, size, **width)
    yield vision_parts("densenet", lambda m: Loss(m.DenseNet(
        8, (2, 2, 2), 16, num_classes=CLASSES)), images())
    yield vision_parts("googlenet", lambda m: Loss(Calls(m.googlenet(
        num_classes=CLASSES, init_weights=False, aux_logits=False),
        lambda m, x: m(x))), images(64, 2))
    yield vision_parts("inception_v3", lambda m: Loss(m.inception_v3(
        num_classes=CLASSES, init_weights=False, aux_logits=False)),
        images(128, 4))
    yield vision_parts("convnext", lambda m: Loss(convnext(m)), images())
    yield vision_parts("vit", lambda m: Loss(m.VisionTransformer(
        32, 8, 2, 4, 32, 64, num_classes=CLASSES)), images())
    for name in ("SwinTransformerBlock", "SwinTransformerBlockV2"):
        def swin(m, name=name):
            s = m.swin_transformer
            merge = s.PatchMergingV2 if "V2" in name else s.PatchMerging
            return Loss(m.SwinTransformer(
                [2, 2], 16, [2, 2], [2, 4], [4, 4],
                stochastic_depth_prob=0., num_classes=CLASSES,
                block=getattr(s, name), downsample_layer=merge))
        yield vision_parts("swin_v2" if "V2" in name else "swin", swin,
                           images())
    yield vision_parts("maxvit", lambda m: Loss(m.MaxVit(
        (32, 32), 16, 4, [16, 32], [1, 1], 8, 0.,
        num_classes=CLASSES)), images())
    seg = dict(weights=None, weights_backbone=None, num_classes=CLASSES)
    for name in ("fcn_resnet50", "deeplabv3_resnet50",
                 "lraspp_mobilenet_v3_large"):
        def segment(m, n=name):
            model = getattr(m.segmentation, n)(**seg)
            thin(model.backbone)
            return Loss(Calls(model, lambda m, x: m(x)["out"]))
        yield vision_parts(name, segment, maps(32))
    yield vision_parts("detector_fpn", pyramid, pictures())
    for name in ("r3d_18", "mc3_18", "r2plus1d_18"):
        yield vision_parts(name, lambda m, n=name: Loss(thin(
            getattr(m.video, n)(num_classes=CLASSES))),
            lambda: [torch.randn(3, 3, 8, 32, 32),
                     torch.randint(0, CLASSES, (3,))])


# ---- timm

TIMM = {  # name: size, then what makes it narrow
    "vit_tiny_patch16_224": (32, dict(img_size=32, patch_size=8, depth=2,
                                      embed_dim=24, num_heads=3)),
    "vit_medium_patch16_gap_240": (32, dict(img_size=32, patch_size=8, depth=2,
                                            embed_dim=24, num_heads=3)),
    "vit_relpos_small_patch16_224": (32, dict(img_size=32, patch_size=8,
                                              depth=2, embed_dim=24,
                                              num_heads=3)),
    "deit_tiny_distilled_patch16_224": (32, dict(img_size=32, patch_size=8,
                                                 depth=2, embed_dim=24,
                                                 num_heads=3)),
    "deit3_small_patch16_224": (32, dict(img_size=32, patch_size=8, depth=2,
                                         embed_dim=24, num_heads=3)),
    "beit_base_patch16_224": (32, dict(img_size=32, patch_size=8, depth=2,
                                       embed_dim=24, num_heads=3)),
    "eva02_tiny_patch14_224": (32, dict(img_size=32, patch_size=8, depth=2,
                                        embed_dim=24, num_heads=3)),
    "cait_xxs24_224": (32, dict(img_size=32, patch_size=8, depth=2,
                                embed_dim=24, num_heads=3)),
    "xcit_nano_12_p16_224": (64, dict(depth=2, embed_dim=24, num_heads=3)),
    "mixer_s16_224": (64, dict(img_size=64)),
    "resmlp_12_224": (64, dict(img_size=64)),
    "gmlp_ti16_224": (64, dict(img_size=64)),
    "convmixer_768_32": (64, dict()),
    "convnext_atto": (32, dict(depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))),
    "convnextv2_atto": (32, dict(depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))),
    "poolformer_s12": (64, dict()),
    "caformer_s18": (64, dict()),
    "pvt_v2_b0": (64, dict()),
    "twins_svt_small": (64, dict(depths=(1, 1, 1, 1), img_size=64)),
    "efficientformer_l1": (224, dict()),
    "efficientformerv2_s0": (224, dict()),
    "efficientvit_b0": (64, dict()),
    "efficientvit_m0": (64, dict(img_size=64)),
    "mobilevit_xxs": (64, dict()),
    "mobilevitv2_050": (64, dict()),
    "mobileone_s0": (64, dict()),
    "mobilenetv4_conv_small_050": (64, dict()),
    "repvgg_a0": (64, dict()),
    "repvit_m0_9": (64, dict()),
    "ghostnet_050": (64, dict()),
    "lcnet_050": (64, dict()),
    "tinynet_e": (64, dict()),
    "hrnet_w18_small": (64, dict()),
    "dm_nfnet_f0": (64, dict()),
    "resnetv2_50": (64, dict()),
    "nf_resnet50": (64, dict()),
    "edgenext_xx_small": (64, dict()),
    "fastvit_t8": (64, dict()),
    "crossvit_9_240": (120, dict(img_size=120)),
    "focalnet_tiny_srf": (64, dict()),
    "davit_tiny": (64, dict(depths=(1, 1, 1, 1), embed_dims=(16, 24, 32, 48),
                            num_heads=(2, 2, 2, 2))),
    "coatnet_nano_rw_224": (64, dict(img_size=64)),
    "levit_128s": (224, dict()),
    "nest_tiny": (64, dict(img_size=64)),
    "swin_s3_tiny_224": (64, dict(img_size=64, window_size=(4, 4, 2, 2),
                                  depths=(2, 1, 1, 1), embed_dim=24,
                                  num_heads=(2, 2, 2, 2))),
    "swinv2_cr_tiny_224": (64, dict(img_size=64, window_size=2,
                                    depths=(1, 1, 1, 1), embed_dim=24,
                                    num_heads=(2, 2, 2, 2))),
    "hiera_tiny_224": (64, dict(img_size=64, embed_dim=16, num_heads=1,
                                stages=(1, 1, 1, 1))),
    "sequencer2d_s": (32, dict(layers=(1, 1, 1, 1),
                               embed_dims=(16, 16, 16, 16),
                               hidden_sizes=(8, 8, 8, 8))),
    "res2net50_26w_4s": (64, dict()),
    "resnest14d": (64, dict()),
    "skresnet18": (64, dict()),
    "ese_vovnet19b_slim": (64, dict()),
    "dla34": (64, dict()),
    "dpn48b": (64, dict()),
    "cspresnet50": (64, dict()),
    "darknet53": (64, dict()),
    "xception41": (64, dict()),
    "rexnet_100": (64, dict()),
    "selecsls42": (64, dict()),
    "tresnet_m": (64, dict()),
    "volo_d1_224": (64, dict(img_size=64)),
    "visformer_tiny": (64, dict(img_size=64)),
    "tnt_s_patch16_224": (32, dict(img_size=32, depth=1)),
    "gcvit_xxtiny": (64, dict(img_size=64, window_size=(4, 4, 2, 2))),
    "botnet26t_256": (64, dict(img_size=64)),
    "lambda_resnet26t": (64, dict(img_size=64)),
    "inception_v4": (96, dict()),
    "inception_resnet_v2": (96, dict()),
    "nasnetalarge": (96, dict()),
    "inception_next_atto": (64, dict()),
    "starnet_s1": (64, dict()),
    "mambaout_femto": (64, dict()),
    "tiny_vit_5m_224": (64, dict()),
    "shvit_s1": (64, dict()),
}


def timm_models():
    for name, (size, how) in TIMM.items():
        def make(name=name, how=how):
            import timm
            timm.layers.set_fused_attn(True)
            two = any(s in name for s in ("swin", "mobilevit", "twins"))
            whole = name.startswith((
                "efficientvit_m", "res2net", "skresnet", "edgenext",
                "crossvit", "ese_vovnet", "hrnet"))
            keep = 99 if whole else 2 if two else 1
            return Loss(thin(timm.create_model(
                name, num_classes=CLASSES, **how), keep))
        yield "timm_" + name, make, images(size, 2)


# ---- transformers


def configured(name, sizes, attention=None):
    import transformers
    config = getattr(transformers, name + "Config")(**sizes)
    for key, value in config.to_dict().items():
        if isinstance(value, float) and ("drop" in key):
            setattr(config, key, 0.)
    if attention:
        config._attn_implementation = attention
    return transformers, config


def language(name, head, sizes):
    def make():
        t, config = configured(name, dict(vocab_size=VOCABULARY,
                                          bos_token_id=1, eos_token_id=2,
                                          **sizes))
        return Loss(Calls(getattr(t, name + head)(config),
                          lambda m, x: m(input_ids=x).logits))
    return make


def hugging_models():
    llama = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=64, pad_token_id=None)
    plain = {k: v for k, v in llama.items() if k != "num_key_value_heads"}
    wide = dict(llama, head_dim=8)
    moe = dict(llama, num_experts=2, num_experts_per_tok=1,
               moe_intermediate_size=32, experts_implementation="batched_mm")
    causal = {
        "GPT2": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64),
        "Llama": llama, "Mistral": llama, "Qwen2": llama, "Phi3": llama,
        "Phi": llama, "StableLm": llama, "Starcoder2": llama, "Olmo": llama,
        "Olmo2": llama, "Cohere": llama, "Granite": llama, "Glm": wide,
        "SmolLM3": llama, "Nemotron": llama, "Helium": wide, "Ministral": wide,
        "Qwen3": wide, "Gemma": wide, "Gemma2": wide, "Gemma3Text": wide,
        "GPTNeoX": plain,
        "GPTJ": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64,
                     rotary_dim=4),
        "GPTNeo": dict(hidden_size=32, num_layers=2, num_heads=4,
                       attention_types=[[["global", "local"], 1]],
                       max_position_embeddings=64, window_size=4),
        "CodeGen": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64,
                        rotary_dim=4),
        "OPT": dict(hidden_size=32, ffn_dim=64, num_hidden_layers=2,
                    num_attention_heads=4, max_position_embeddings=64,
                    word_embed_proj_dim=32, pad_token_id=1),
        "Bloom": dict(hidden_size=32, n_layer=2, n_head=4),
        "Falcon": dict(hidden_size=32, num_hidden_layers=2,
                       num_attention_heads=4),
        "Mpt": dict(d_model=32, n_layers=2, n_heads=4, max_seq_len=64),
        "Mamba": dict(hidden_size=32, state_size=4, num_hidden_layers=2),
        "Mamba2": dict(hidden_size=32, state_size=8, num_hidden_layers=2,
                       num_heads=4, head_dim=16, n_groups=1, chunk_size=4),
        "FalconMamba": dict(hidden_size=32, state_size=4,
                            num_hidden_layers=2),
        "Rwkv": dict(hidden_size=32, num_hidden_layers=2,
                     attention_hidden_size=32, context_length=64),
        "XGLM": dict(d_model=32, ffn_dim=64, num_layers=2, attention_heads=4,
                     max_position_embeddings=64),
        "Mixtral": dict(llama, num_local_experts=2, num_experts_per_tok=1,
                        experts_implementation="batched_mm"),
        "Qwen2Moe": dict(moe, shared_expert_intermediate_size=32),
        "Qwen3Moe": dict(moe, head_dim=8),
        "GPTBigCode": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64),
        "Persimmon": llama, "Cohere2": dict(llama, sliding_window=4),
        "Olmo3": dict(llama, sliding_window=4),
        "Exaone4": dict(llama, sliding_window=4), "Ernie4_5": wide,
    }
    for name, sizes in causal.items():
        head = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
        short = name.replace("Text", "")
        for attention in (None, "eager"):
            if attention and name not in ("GPT2", "Llama", "OPT", "Falcon"):
                continue

            def make(n=name, h=head, s=sizes, a=attention, short=short):
                t, config = configured(n, dict(
                    vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2,
                    **s), a)
                return Loss(Calls(getattr(t, short + h)(config),
                                  lambda m, x: m(input_ids=x,
                                                 use_cache=False).logits))
            yield f"hf_{short.lower()}" + (f"_{attention}" if attention
                                           else ""), make, tokens()

    bert = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                intermediate_size=64, max_position_embeddings=64,
                num_labels=CLASSES)
    encoders = {
        "Bert": bert, "Roberta": bert, "Electra": dict(bert,
                                                       embedding_size=16),
        "Albert": dict(bert, embedding_size=16), "Camembert": bert,
        "DistilBert": dict(dim=32, n_layers=2, n_heads=4, hidden_dim=64,
                           max_position_embeddings=64, num_labels=CLASSES),
        "DebertaV2": dict(bert, relative_attention=True,
                          pos_att_type=["p2c", "c2p"], type_vocab_size=0),
        "MPNet": bert, "MobileBert": dict(
            bert, embedding_size=16, intra_bottleneck_size=32,
            true_hidden_size=32),
        "SqueezeBert": dict(bert, embedding_size=32, q_groups=2, k_groups=2,
                            v_groups=2, post_attention_groups=1,
                            intermediate_groups=2, output_groups=2),
        "FNet": {k: v for k, v in bert.items() if k != "num_attention_heads"},
        "XLNet": dict(d_model=32, n_layer=2, n_head=4, d_inner=64,
                      num_labels=CLASSES),
        "ModernBert": dict(bert, pad_token_id=0, cls_token_id=1,
                           sep_token_id=2),
        "RoFormer": dict(bert, embedding_size=32),
        "ConvBert": dict(bert, embedding_size=32),
        "Funnel": dict(block_sizes=[1, 1], d_model=32, n_head=4, d_head=8,
                       d_inner=64, num_labels=CLASSES),
    }
    for name, sizes in encoders.items():
        if name in ("Bert", "Roberta"):
            yield f"hf_{name.lower()}_mlm", \
                language(name, "ForMaskedLM", sizes), tokens()
        yield f"hf_{name.lower()}", language(
            name, "ForSequenceClassification", sizes), sentences()

    seq = dict(d_model=32, encoder_layers=1, decoder_layers=1,
               encoder_attention_heads=4, decoder_attention_heads=4,
               encoder_ffn_dim=64, decoder_ffn_dim=64,
               max_position_embeddings=64, pad_token_id=0,
               decoder_start_token_id=2)
    t5 = dict(d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4,
              decoder_start_token_id=0, pad_token_id=0)
    heads = {"T5": (t5, "T5ForConditionalGeneration"),
             "MT5": (t5, "MT5ForConditionalGeneration"),
             "Bart": (seq, "BartForConditionalGeneration"),
             "MBart": (seq, "MBartForConditionalGeneration"),
             "Marian": (seq, "MarianMTModel"),
             "Pegasus": (seq, "PegasusForConditionalGeneration"),
             "M2M100": (seq, "M2M100ForConditionalGeneration"),
             "Blenderbot": (seq, "BlenderbotForConditionalGeneration")}
    for name, (sizes, head) in heads.items():
        def make(n=name, s=sizes, h=head):
            t, config = configured(n, dict(vocab_size=VOCABULARY,
                                           bos_token_id=1, eos_token_id=2,
                                           **s))
            return Loss(Calls(getattr(t, h)(config), lambda m, x: m(
                input_ids=x, decoder_input_ids=x.flip(1),
                use_cache=False).logits))
        yield f"hf_{name.lower()}", make, tokens()

    vit = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
               intermediate_size=64, image_size=32, patch_size=8,
               num_labels=CLASSES)
    sights = {
        "ViT": vit, "DeiT": vit, "Beit": vit, "Dinov2": vit,
        "Dinov2WithRegisters": vit, "ViTMSN": vit, "IJepa": vit,
        "Swin": dict(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2],
                     num_heads=[2, 2], window_size=4, num_labels=CLASSES),
        "Swinv2": dict(image_size=32, patch_size=2, embed_dim=16,
                       depths=[2, 2], num_heads=[2, 2], window_size=4,
                       num_labels=CLASSES),
        "ConvNext": dict(num_stages=2, hidden_sizes=[16, 24], depths=[1, 1],
                         num_labels=CLASSES),
        "ResNet": dict(embedding_size=8, hidden_sizes=[8, 16],
                       depths=[1, 1], num_labels=CLASSES),
        "MobileNetV1": dict(depth_multiplier=.25, num_labels=CLASSES),
        "Segformer": dict(num_encoder_blocks=2, depths=[1, 1],
                          sr_ratios=[2, 1], hidden_sizes=[16, 32],
                          patch_sizes=[7, 3], strides=[4, 2],
                          num_attention_heads=[1, 2], mlp_ratios=[2, 2],
                          decoder_hidden_size=16, num_labels=CLASSES),
        "Pvt": dict(image_size=32, num_encoder_blocks=2, depths=[1, 1],
                    sequence_reduction_ratios=[2, 1], hidden_sizes=[16, 32],
                    patch_sizes=[4, 2], strides=[4, 2],
                    num_attention_heads=[1, 2], mlp_ratios=[2, 2],
                    num_labels=CLASSES),
        "Cvt": dict(num_channels=3, embed_dim=[16, 32], num_heads=[1, 2],
                    depth=[2, 2], patch_sizes=[7, 3], patch_stride=[4, 2],
                    patch_padding=[2, 1], mlp_ratio=[2., 2.],
                    attention_drop_rate=[0., 0.], drop_rate=[0., 0.],
                    drop_path_rate=[0., 0.], qkv_bias=[True, True],
                    cls_token=[False, True], kernel_qkv=[3, 3],
                    padding_kv=[1, 1], stride_kv=[2, 2], padding_q=[1, 1],
                    stride_q=[1, 1], qkv_projection_method=["dw_bn"] * 2,
                    num_labels=CLASSES),
    }
    for name, sizes in sights.items():
        def make(n=name, s=sizes):
            t, config = configured(n, s)
            if n == "Cvt":  # wants what is a list set as a list
                config.drop_rate = [0.] * 2
            return Loss(Calls(getattr(t, n + "ForImageClassification")(
                config), lambda m, x: m(pixel_values=x).logits))
        yield f"hf_{name.lower()}", make, images()

    def segformer():
        t, config = configured("Segformer", sights["Segformer"])
        return Loss(Calls(t.SegformerForSemanticSegmentation(config),
                          lambda m, x: F.interpolate(
                              m(pixel_values=x).logits, scale_factor=4,
                              mode="bilinear", align_corners=False)))
    yield "hf_segformer_maps", segformer, maps(32)

    text = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                num_attention_heads=4, vocab_size=VOCABULARY,
                max_position_embeddings=16, bos_token_id=1, eos_token_id=2,
                pad_token_id=0, projection_dim=16)
    sight = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                 num_attention_heads=4, image_size=32, patch_size=8,
                 projection_dim=16)
    for name in ("CLIP", "Siglip", "AltCLIP", "ChineseCLIP"):
        def clip(name=name):
            t, config = configured(name, dict(
                text_config=dict(text), vision_config=dict(sight),
                projection_dim=16))
            return Features(getattr(t, name + "Model")(config), lambda m, i, p:
                            F.cross_entropy(m(
                                input_ids=i, pixel_values=p).logits_per_text,
                                torch.arange(2)))
        yield "hf_" + name.lower(), clip, lambda: [
            torch.randint(3, VOCABULARY, (2, 12)), torch.randn(2, 3, 32, 32)]

    def whisper():
        t, config = configured("Whisper", dict(
            seq, vocab_size=VOCABULARY, num_mel_bins=8,
            max_source_positions=16, max_target_positions=16,
            bos_token_id=1, eos_token_id=2, suppress_tokens=None,
            begin_suppress_tokens=None))
        return Features(t.WhisperForConditionalGeneration(config),
                        lambda m, a, x: m(input_features=a,
                                          decoder_input_ids=x,
                                          use_cache=False).logits)
    yield "hf_whisper", whisper, lambda: [
        torch.randn(2, 8, 32), torch.randint(3, VOCABULARY, (2, 12))]
    sound = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                 intermediate_size=64, conv_dim=[16, 16], conv_stride=[5, 2],
                 conv_kernel=[10, 3], num_feat_extract_layers=2,
                 vocab_size=VOCABULARY, num_conv_pos_embeddings=16,
                 num_conv_pos_embedding_groups=4, apply_spec_augment=False,
                 mask_time_prob=0., mask_feature_prob=0.)
    for name in ("Wav2Vec2", "Hubert", "WavLM"):
        def wave(name=name):
            t, config = configured(name, sound)
            return Features(getattr(t, name + "ForCTC")(config),
                            lambda m, x: m(input_values=x).logits)
        yield "hf_" + name.lower(), wave, lambda: [torch.randn(2, 400)]
    def spectrogram():
        t, config = configured("AST", dict(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=64, patch_size=8, max_length=32, num_mel_bins=16,
            frequency_stride=8, time_stride=8, num_labels=CLASSES))
        return Loss(Calls(t.ASTForAudioClassification(config),
                          lambda m, x: m(input_values=x).logits))
    yield "hf_ast", spectrogram, lambda: [torch.randn(2, 32, 16),
                                          torch.randint(0, CLASSES, (2,))]

    def dpt():
        t, config = configured("DPT", dict(
            dict(vit, num_hidden_layers=4), backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[8] * 4, initializer_range=.1,
            fusion_hidden_size=8, reassemble_factors=[4, 2, 1, .5]))
        return Features(t.DPTForDepthEstimation(config),
                        lambda m, x: m(pixel_values=x).predicted_depth)
    yield "hf_dpt", dpt, pictures()

    def patch():
        t, config = configured("PatchTST", dict(
            num_input_channels=3, context_length=16, patch_length=4,
            patch_stride=4, d_model=16, ffn_dim=32, num_hidden_layers=1,
            num_attention_heads=2, prediction_length=4,
            loss="mse", scaling=None))
        return Features(t.PatchTSTForPrediction(config), lambda m, x: m(
            past_values=x).prediction_outputs)
    yield "hf_patchtst", patch, lambda: [torch.randn(2, 16, 3)]


def diffusers_models():
    def autoencoder():
        import diffusers
        return Features(diffusers.AutoencoderKL(
            down_block_types=["DownEncoderBlock2D"] * 2,
            up_block_types=["UpDecoderBlock2D"] * 2, block_out_channels=[8, 16],
            layers_per_block=1, norm_num_groups=4, latent_channels=4,
            sample_size=16), lambda m, x: m(x, return_dict=False)[0])
    yield "diffusers_vae", autoencoder, pictures(16)

    def unet():
        import diffusers
        return Features(diffusers.UNet2DConditionModel(
            sample_size=8, in_channels=4, out_channels=4, layers_per_block=1,
            block_out_channels=[8, 16], norm_num_groups=4,
            down_block_types=["CrossAttnDownBlock2D", "DownBlock2D"],
            up_block_types=["UpBlock2D", "CrossAttnUpBlock2D"],
            cross_attention_dim=16, attention_head_dim=4),
            lambda m, x, t, c: m(x, t, c, return_dict=False)[0])
    yield "diffusers_unet", unet, lambda: [
        torch.randn(2, 4, 8, 8), torch.randint(0, 1000, (2,)),
        torch.randn(2, 5, 16)]


SLOW = ("timm_nasnet", "timm_inception_resnet", "timm_inception_v4",
        "timm_levit", "timm_hrnet", "timm_xception")


def zoo():
    yield from own()
    yield from torchvision_models()
    yield from timm_models()
    yield from hugging_models()
    yield from diffusers_models()


# ---- one model


def export(model, data, path, exporter):
    """dynamo does not optimise; default does, as PyTorch's exporter by default,
    and dynamic leaves the batch open; ampc is ampc.torch.export, with any batch
    where the model allows it."""
    if exporter == "ampc":
        import ampc.torch
        ampc.torch.export(model, tuple(data), path, input_names=names_of(data))
        return
    how = dict(dynamo=True, optimize=exporter != "dynamo", verbose=False,
               external_data=False)
    if exporter == "dynamic":
        batch = torch.export.Dim("batch")
        how["dynamic_shapes"] = [tuple({0: batch} for _ in data)] \
            if takes_any(model) else tuple({0: batch} for _ in data)
    if exporter == "torchscript":
        how = dict(dynamo=False, do_constant_folding=False, opset_version=17,
                   training=torch.onnx.TrainingMode.TRAINING)
    torch.onnx.export(model, tuple(data), path, input_names=names_of(data),
                      **how)


def takes_any(model):
    """Does forward take *args, so that the exporter sees one input, a tuple?"""
    kinds = [p.kind for p in
             inspect.signature(model.forward).parameters.values()]
    return kinds == [inspect.Parameter.VAR_POSITIONAL]


def names_of(data):
    return [f"in{i}" for i in range(len(data))]


def torch_run(model, data, states=None, autocast=False):
    """Losses, and the gradient's norm at the first step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses, norm = [], None
    for _ in range(STEPS):
        if states is not None:
            states.append(copy.deepcopy(model.state_dict()))
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(*data)
        loss.backward()
        if norm is None:
            norm = nn.utils.clip_grad_norm_(model.parameters(),
                                            math.inf).item()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), norm


def said(text):
    """The first error, without the file's name."""
    lines = [s for s in text.splitlines() if "error" in s]
    return (lines or text.splitlines() or ["?"])[0].split("error: ")[-1]


class Refused(Exception):
    pass


def call(*command):
    """Runs it; returns user and system seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    r = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if r.returncode:
        raise Refused(said(r.stderr) if r.returncode > 0
                      else f"signal {-r.returncode}")
    return (after.ru_utime + after.ru_stime -
            before.ru_utime - before.ru_stime)


def frozen(model, path):
    """What no file tells: parameters that do not train, and in TorchScript's
    which are buffers."""
    import onnx
    held = {k for k, v in model.named_buffers() if v.is_floating_point() and
            not k.endswith(("running_mean", "running_var"))}
    held |= {k for k, v in model.named_parameters() if not v.requires_grad}
    graph = onnx.load(path, load_external_data=False).graph
    return [w for i in graph.initializer if i.name in held
            for w in ("--freeze", i.name)]


def any_batch(path):
    import onnx
    graph = onnx.load(path, load_external_data=False).graph
    return any(d.dim_param == "batch" for i in graph.input
               for d in i.type.tensor_type.shape.dim)


def ampc_run(ampc, path, data, precision, states, options):
    so, log = path + ".so", path + ".jsonl"
    seconds = call(ampc, path, "-o", so, "--precision", precision,
                   "--optimizer", f"sgd,lr={RATE}", "--target",
                   "cpu:x86-64-v3", *options)
    run = [ampc, "run", so, "--device", "cpu", "--threads", "1", "--log", log,
           "--quiet"]
    for name, x in zip(names_of(data), data):
        np.save(f"{path}.{name}.npy", x.numpy())
        run += ["--feed", f"{name}={path}.{name}.npy"]
    lines = []
    if states is None:
        call(*run, "--steps", str(STEPS))
        lines = [json.loads(s) for s in open(log)]
    else:
        from safetensors.torch import save_file
        for state in states:
            save_file({k: v.contiguous().clone() for k, v in state.items()},
                      path + ".st")
            call(*run, "--steps", "1", "--load", path + ".st")
            lines.append(json.loads(open(log).readline()))
    losses = np.array([x["loss"] if x["loss"] is not None else math.nan
                       for x in lines])
    return losses, lines[0]["grad_norm"] or math.nan, seconds, \
        os.path.getsize(so)


def distance(a, b):
    d = np.max(np.abs(a - b) / np.maximum(np.abs(b), 1e-3))
    return math.inf if math.isnan(d) else float(d)


def one(ampc, name, folder, bf16, check, exporters):
    """Everything about one model, as a dictionary; without losses and what is
    beside them where only the files are checked."""
    make, data = next((m, d) for n, m, d in zoo() if n == name)
    torch.manual_seed(0)
    model = calm(make()).train()
    batch = data()
    start = copy.deepcopy(model.state_dict())  # as dict no version's mark
    parameters = sum(p.numel() for p in model.parameters())
    states = [] if any("BatchNorm" in type(m).__name__
                       for m in model.modules()) else None
    files = []
    for exporter in exporters:
        path = os.path.join(folder, f"{name}.{exporter}.onnx")
        try:
            if not os.path.exists(path):
                export(model, batch, path, exporter)
            files.append((exporter, path, None))
        except Exception as e:  # what torch cannot export is not ours to train
            while e.__cause__:
                e = e.__cause__
            files.append((exporter, path, type(e).__name__ + ": " +
                          " ".join(str(e).split())[:80]))
        model.load_state_dict(start)
    if check:
        return {"name": name, "parameters": parameters, "forced": False,
                "autocast": None,
                "files": [checked(ampc, *file) for file in files]}
    want, norm = torch_run(model, batch, states)
    model.load_state_dict(start)
    out = {"name": name, "parameters": parameters, "files": [],
           "autocast": autocast(model, batch, states, want),
           "forced": states is not None}
    model.load_state_dict(start)
    model.zero_grad()
    losses, exact = in_fp64(model, batch, states)
    out["gradient"] = exact and abs(norm - exact) / exact
    out["loss"] = exact and distance(want[:len(losses)], losses)
    short = bf16 == "none"
    for exporter, path, error in files:
        row = {"exporter": exporter, "error": error, "exported": not error}
        out["files"].append(row)
        if error:
            continue
        try:
            options = frozen(model, path)
            if exporter in ("dynamic", "ampc") and any_batch(path):
                options += ["--dim", f"batch={len(batch[0])}"]
            got, ours, seconds, size = ampc_run(ampc, path, batch, "fp32",
                                                states, options)
            row.update(fp32=distance(got, want), seconds=seconds, size=size,
                       gradient=abs(ours - (exact or norm)) / norm)
            if not short:
                got = ampc_run(ampc, path, batch, "bf16", states, options)[0]
                row.update(bf16=distance(got, want))
                short = bf16 == "one"
        except Refused as e:
            row["error"] = str(e)[:150]
    return out


def checked(ampc, exporter, path, error):
    row = {"exporter": exporter, "error": error, "exported": not error}
    if not error:
        try:
            call(ampc, "check", path)
        except Refused as e:
            row["error"] = str(e)[:150]
    return row


def in_fp64(model, data, states):
    """Losses (without states the first alone) and the gradient's norm; None
    where a model insists on fp32."""
    wide = [x.double() if x.is_floating_point() else x for x in data]
    losses = []
    try:
        for state in states or [model.state_dict()]:
            model.load_state_dict(state)
            loss = model.double()(*wide)
            if not losses:
                loss.backward()
            losses.append(loss.item())
        return np.array(losses), nn.utils.clip_grad_norm_(
            model.parameters(), math.inf).item()
    except RuntimeError:
        return None, None


def autocast(model, batch, states, want):
    """How far PyTorch's own bf16 is from its fp32; None if it has none."""
    try:
        if states is None:
            return distance(torch_run(model, batch, None, True)[0], want)
        losses = []
        for state in states:
            model.load_state_dict(state)
            with torch.autocast("cpu", torch.bfloat16):
                losses.append(model(*batch).item())
        return distance(np.array(losses), want)
    except RuntimeError:  # an operator without a 16-bit form
        return None


# ---- the table


def show(x):
    return "-" if x is None else "%.0e" % x


def print_row(out, row):
    name = out["name"] + (" (forced)" if out["forced"] else "")
    cells = [name, f"{out['parameters'] / 1e6:.2f}", row["exporter"]]
    if "fp32" in row:
        cells += [show(row["fp32"]), show(out.get("loss")), show(row["gradient"]),
                  show(out.get("gradient")), show(row.get("bf16")),
                  show(out["autocast"]) if "bf16" in row else "-",
                  "%.1f" % row["seconds"], "%.1f" % (row["size"] / 1e6)]
    if row["error"]:
        what = "refused: " if row["exported"] else "not exported: "
        cells += [what + row["error"]] + \
            [""] * (11 - len(cells))
    csv.writer(sys.stdout, lineterminator="\n").writerow(cells)
    sys.stdout.flush()


def say(text):
    """Beside the table, which is standard output."""
    print(text, file=sys.stderr)


def totals(outs):
    rows = [(o, r) for o in outs for r in o["files"] if r["exported"]]
    good = [r for _, r in rows if "fp32" in r]
    exported = [o for o in outs if any(r["exported"] for r in o["files"])]
    take = [o for o in exported if any("fp32" in r for r in o["files"])]
    near = [r for r in good if r["fp32"] < LIMIT]
    hard = [r for o, r in rows if LIMIT <= r.get("fp32", 0) < 3 * (
        o.get("loss") or 0)]
    say(f"{len(outs)} architectures; PyTorch exports {len(exported)}, "
        f"{len(take)} of them train from at least one file.  Of {len(rows)} "
        f"files {len(good)} compile and {len(near)} of these have PyTorch's "
        f"fp32 losses within {LIMIT:g}; {len(hard)} more are no further from "
        "them than three times PyTorch's fp32 from its fp64.")
    if good:
        say(f"Medians: loss {statistics.median(r['fp32'] for r in good):.1e},"
            f" gradient {statistics.median(r['gradient'] for r in good):.1e},"
            " compile "
            f"{statistics.median(r['seconds'] for r in good):.1f} s.")
    pairs = [(r["bf16"], o["autocast"]) for o, r in rows
             if "bf16" in r and o["autocast"] is not None]
    if pairs:
        say(f"bf16: {sum(a <= b for a, b in pairs)} of {len(pairs)} files "
            f"nearer to fp32 than PyTorch's autocast, "
            f"{sum(a <= 2 * b for a, b in pairs)} within twice its distance; "
            f"medians {statistics.median(a for a, _ in pairs):.1e} and "
            f"{statistics.median(b for _, b in pairs):.1e}.")
    return len(near) + len(hard) == len(rows)


def refusals(outs):
    """What --check prints: every error, those of most files first."""
    names = {}
    for out in outs:
        for row in out["files"]:
            if row["error"]:
                names.setdefault((row["exported"], row["error"]), []).append(
                    f"{out['name']}.{row['exporter']}")
    for (exported, error), files in sorted(
            names.items(), key=lambda x: (-x[0][0], -len(x[1]))):
        print("refused" if exported else "not exported", len(files), error)
        print("   ", " ".join(files))
    return int(any(exported for exported, _ in names))


def failed(name, why):
    return {"name": name, "parameters": 0, "forced": False, "autocast": None,
            "files": [{"exporter": "-", "exported": False, "error": why}]}


def child(pipe, ampc, name, keep, bf16, check, exporters):
    os.setsid()  # what it starts ends with it
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # exporters print graphs of what they cannot export
    os.dup2(null, 2)
    with tempfile.TemporaryDirectory() as folder:
        try:
            out = one(ampc, name, keep or folder, bf16, check, exporters)
        except Exception as e:
            out = failed(name, "not made: " + " ".join(str(e).split())[:120])
    pipe.send(out)


def results(options, names):
    """One process a model, forked after the imports; as they are ready."""
    todo, running = list(names), {}
    while todo or running:
        while todo and len(running) < options.jobs:
            ours, theirs = multiprocessing.Pipe(False)
            p = multiprocessing.Process(target=child, args=(
                theirs, os.path.abspath(options.ampc), todo[0], options.keep,
                options.bf16, options.check, options.exporters))
            p.start()
            theirs.close()
            running[ours] = (todo.pop(0), p, time.monotonic())
        ready = multiprocessing.connection.wait(list(running), 1)
        for pipe, (name, p, start) in list(running.items()):
            late = time.monotonic() - start > options.timeout
            if pipe not in ready and not late:
                continue
            try:
                yield failed(name, "too slow") if late else pipe.recv()
            except EOFError:
                yield failed(name, "the process died")
            if late:
                os.killpg(p.pid, signal.SIGKILL)
            p.join()
            del running[pipe]


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("ampc")
    p.add_argument("names", nargs="*")
    p.add_argument("--slow", action="store_true", help="all")
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--keep", metavar="DIR", help="what is exported stays, for another time")
    p.add_argument("--results", metavar="FILE", help="goes on where it ended")
    p.add_argument("--table", action="store_true",
                   help="only print what --results has")
    p.add_argument("--bf16", default="one", choices=("all", "one", "none"),
                   help="of which files (default: one of each model)")
    p.add_argument("--exporters", default=",".join(EXPORTERS),
                   type=lambda text: text.split(","), metavar="NAMES",
                   help="some of dynamo (which does not optimise), torchscript,\n"
                   "default (dynamo, optimised), dynamic (so with any batch)\n"
                   "and ampc (ampc.torch.export, on PYTHONPATH)")
    p.add_argument("--check", action="store_true",
                   help="only list what `ampc check` refuses")
    p.add_argument("--timeout", type=float, default=900, metavar="SECONDS")
    o = p.parse_intermixed_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    every = [n for n, _, _ in zoo()]
    chosen = list(dict.fromkeys(
        n for start in o.names for n in every if n.startswith(start))) or \
        [n for n in every if o.slow or not n.startswith(SLOW)]
    done = {}
    if o.results and os.path.exists(o.results):
        done = {r["name"]: r for r in map(json.loads, open(o.results))}
    todo = [n for n in chosen if n not in done and not o.table]
    if todo:
        import onnxscript, timm, torchvision, transformers  # before forking
    for out in results(o, todo):
        done[out["name"]] = out
        print(out, file=sys.stderr, flush=True)
        if o.results:
            with open(o.results, "a") as f:
                print(json.dumps(out), file=f)
    outs = [done[n] for n in chosen if n in done]
    if o.check:
        return refusals(outs)
    print("model,million parameters,exporter,fp32 loss distance,"
          "PyTorch fp32 loss distance,gradient distance,"
          "PyTorch gradient distance,bf16 loss distance,"
          "autocast loss distance,compile seconds,module MB")
    for out in outs:
        for row in out["files"]:
            print_row(out, row)
    if len(outs) < len(every):
        print(f"{len(every) - len(outs)} more models of the list were not run",
              file=sys.stderr)
    return 0 if totals(outs) else 1


if __name__ == "__main__":
    sys.exit(main())
