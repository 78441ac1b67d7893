"""Weight table of Seed-OSS: Llama's."""

from weights_map.llama import relative

table = relative("seed_oss")
