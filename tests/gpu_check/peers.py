#!/usr/bin/env python3
"""What PyTorch makes of the same device: prints a JSON object of seconds and rates, or nothing where there is no PyTorch.

The shapes are those of tests/gpu_check: 32 sessions, 32 query and 8 KV heads of 128, BF16."""

import json
import sys


def main():
    try:
        import torch
    except ImportError:
        return "no PyTorch"
    if not torch.cuda.is_available():
        return "PyTorch sees no device"
    device = torch.device("cuda")
    torch.manual_seed(1)

    def seconds(run, repeats=30):
        for _ in range(3):
            run(0)
        times = []
        for _ in range(5):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for i in range(repeats):
                run(i)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1e3 / repeats)
        return sorted(times)[len(times) // 2]

    found = {"torch": torch.__version__}

    def measure(name, run):
        try:
            found[name] = run()
        except Exception as error:  # a peer that fails is left out; the rest counts
            print(f"{name}: {error}", file=sys.stderr)
        torch.cuda.empty_cache()

    def copy():
        a = torch.empty(2 << 30, dtype=torch.int8, device=device)
        b = torch.empty_like(a)
        return 2 * a.numel() / seconds(lambda i: b.copy_(a), 10)

    def matmul():
        a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
        b = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
        return 2 * 8192**3 / seconds(lambda i: a @ b, 10)

    def sdpa(slots):
        def run():
            sets = max(2, min(32, -(-1100 * 10**6 // (32 * 8 * slots * 128 * 4))))
            shape = (32, 8, slots, 128)
            kv = [(torch.randn(shape, device=device, dtype=torch.bfloat16),
                   torch.randn(shape, device=device, dtype=torch.bfloat16)) for _ in range(sets)]
            q = torch.randn(32, 32, 1, 128, device=device, dtype=torch.bfloat16)
            attend = torch.nn.functional.scaled_dot_product_attention
            return seconds(lambda i: attend(q, *kv[i % sets], enable_gqa=True))

        return run

    def sdpa_prompt():  # operations a second; every row sees every slot
        q = torch.randn(1, 32, 1024, 128, device=device, dtype=torch.bfloat16)
        k = torch.randn(1, 8, 8192, 128, device=device, dtype=torch.bfloat16)
        attend = torch.nn.functional.scaled_dot_product_attention
        return 4 * 32 * 1024 * 8192 * 128 / seconds(lambda i: attend(q, k, k, enable_gqa=True))

    def gather_cat():
        sets = 16
        kv = [torch.randn(2, 8, 8, 1024, 128, device=device, dtype=torch.bfloat16) for _ in range(sets)]
        new = torch.randn(2, 8, 8, 64, 128, device=device, dtype=torch.bfloat16)
        kept = torch.randperm(1024, device=device)[:960].sort().values

        def run(i):
            k, v = kv[i % sets]
            return (torch.cat((k.index_select(2, kept), new[0]), dim=2),
                    torch.cat((v.index_select(2, kept), new[1]), dim=2))

        return seconds(run)

    measure("copy", copy)
    measure("matmul", matmul)
    for slots in (4096, 1024, 256):
        measure(f"sdpa_{slots}", sdpa(slots))
    measure("sdpa_prompt", sdpa_prompt)
    measure("gather_cat", gather_cat)
    json.dump(found, sys.stdout)
    return None


if __name__ == "__main__":
    sys.exit(main())
