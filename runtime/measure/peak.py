"""Peak FLOP/s of one JAX device, by its `device_kind`.

Dense matrix products only: NVIDIA's datasheets often state twice that, for sparse matrices. A JAX device is a whole chip,
except on TPU v2, v3, 7x and 8i, where it is one of two TensorCores.

`float32` is the peak for float32 matrix products at JAX's default precision: one bfloat16 pass on TPU, TF32 on NVIDIA GPUs
since Ampere (https://docs.jax.dev/en/latest/201/precision.html). Older GPUs have neither TF32 nor bfloat16 and compute both
types in float32, outside the Tensor Cores.

TPU device kinds are listed in jax/_src/pallas/mosaic/tpu_info.py; GPU device kinds are CUDA's names. Names are matched in
full, because a part of a GPU (`... MIG 1g.5gb`) is another device.
"""

from __future__ import annotations

from dataclasses import dataclass

_TERA = 1e12


@dataclass(frozen=True)
class Peak:
    """Peak FLOP/s of one JAX device."""

    bfloat16: float
    float32: float
    source: str
    """Address of the page that publishes the numbers."""

    def flops(self, precision: str) -> float:
        """Return the peak FLOP/s of a job at `precision`."""
        return self.bfloat16 if precision == "bfloat16" else self.float32


def peak_of(device_kind: str) -> Peak | None:
    """Return the peak of a device kind, as JAX names it; None if it is unknown, as for CPUs."""
    return PEAKS.get(device_kind)


def tpu_kind(slice_name: str) -> str | None:
    """Return the device kind of a TPU slice, `TPU v3` for `v3-32`; None for slices of CPUs and GPUs."""
    return _TPU_KINDS.get(slice_name.rpartition("-")[0])


def seconds_at_peak(flops: float, device_kind: str, devices: int, precision: str) -> float | None:
    """Return the seconds that `flops` take on `devices` devices at their peak; None if their peak is unknown."""
    peak = peak_of(device_kind)
    return flops / (devices * peak.flops(precision)) if peak else None


def _table(*rows: tuple[tuple[str, ...], float, float, str]) -> dict[str, Peak]:
    """Return the peaks by device kind, from rows of (device kinds, bfloat16 TFLOP/s, float32 TFLOP/s, source)."""
    return {kind: Peak(bf16 * _TERA, f32 * _TERA, source) for kinds, bf16, f32, source in rows for kind in kinds}


_TPU_KINDS = {
    "v2": "TPU v2",
    "v3": "TPU v3",
    "v4": "TPU v4",
    "v5litepod": "TPU v5 lite",
    "v5p": "TPU v5",
    "v6e": "TPU v6 lite",
    "tpu7x": "TPU7x",
}

_TPU = "https://docs.cloud.google.com/tpu/docs/"
_JAX = "https://github.com/jax-ml/jax/blob/main/jax/_src/tpu_info.py"
_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_AMPERE = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"

PEAKS = _table(
    (("TPU v2",), 46 / 2, 46 / 2, "https://doi.org/10.1145/3360307"),  # per chip: 46
    (("TPU v3",), 123 / 2, 123 / 2, f"{_TPU}v3"),  # per chip: 123
    (("TPU v4",), 275, 275, f"{_TPU}v4"),
    (("TPU v5 lite", "TPU v5e"), 197, 197, f"{_TPU}v5e"),
    (("TPU v5", "TPU v5p"), 459, 459, f"{_TPU}v5p"),
    (("TPU v6 lite", "TPU v6e"), 918, 918, f"{_TPU}v6e"),
    (("TPU7x",), 2307 / 2, 2307 / 2, f"{_TPU}tpu7x"),  # per chip: 2307
    (("TPU8t",), 996.1, 996.1, _JAX),
    (("TPU8i",), 1101 / 2, 1101 / 2, _JAX),  # per chip: 1101
    (
        ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB-LS"),
        15.7,
        15.7,
        f"{_NVIDIA}v100/",
    ),
    (("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"), 14, 14, f"{_NVIDIA}v100/"),
    (("Tesla T4",), 8.1, 8.1, f"{_NVIDIA}tesla-t4/"),
    (
        (
            "NVIDIA A100-SXM4-40GB",
            "NVIDIA A100-SXM4-80GB",
            "NVIDIA A100-PCIE-40GB",
            "NVIDIA A100 80GB PCIe",
            "A100-SXM4-40GB",
            "A100-SXM4-80GB",
            "A100-PCIE-40GB",
        ),
        312,
        156,
        f"{_NVIDIA}a100/",
    ),
    (("NVIDIA A30",), 165, 82, f"{_NVIDIA}products/a30-gpu/"),
    (("NVIDIA A40",), 149.7, 74.8, f"{_NVIDIA}a40/"),
    (("NVIDIA A10",), 125, 62.5, f"{_NVIDIA}products/a10-gpu/"),
    (
        ("NVIDIA A10G",),
        70,
        35,
        "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf",
    ),
    (("NVIDIA RTX A6000",), 154.8, 77.4, _AMPERE),
    (("NVIDIA GeForce RTX 3090",), 71, 35.6, _AMPERE),
    (("NVIDIA L4",), 242 / 2, 120 / 2, f"{_NVIDIA}l4/"),
    (("NVIDIA L40",), 181.05, 90.5, f"{_NVIDIA}l40/"),
    (("NVIDIA L40S",), 362.05, 183, f"{_NVIDIA}l40s/"),
    (("NVIDIA GeForce RTX 4090",), 165.2, 82.6, _ADA),
    (("NVIDIA H100 80GB HBM3", "NVIDIA GH200 480GB"), 1979 / 2, 989 / 2, f"{_NVIDIA}h100/"),
    (("NVIDIA H100 PCIe",), 1513 / 2, 756 / 2, f"{_NVIDIA}h100/"),
    (("NVIDIA H100 NVL",), 1671 / 2, 835 / 2, f"{_NVIDIA}h100/"),
    (("NVIDIA H200",), 1979 / 2, 989 / 2, f"{_NVIDIA}h200/"),
    (("NVIDIA H200 NVL",), 1671 / 2, 835 / 2, f"{_NVIDIA}h200/"),
    (("NVIDIA B200", "NVIDIA B300 SXM6 AC"), 36000 / 8 / 2, 18000 / 8 / 2, f"{_NVIDIA}hgx/"),
    (("NVIDIA GB200",), 5000 / 2, 2500 / 2, f"{_NVIDIA}gb200-nvl72/"),
    (("NVIDIA GB300",), 5000 / 2, 2500 / 2, f"{_NVIDIA}gb300-nvl72/"),
)
