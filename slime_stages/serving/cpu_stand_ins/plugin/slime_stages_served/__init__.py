"""Given to SGLang as SGLANG_EXTERNAL_MODEL_PACKAGE: with one model in it, SGLang need not import its two hundred."""
