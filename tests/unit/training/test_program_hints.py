"""The fix that is named for an error of a user's program; the errors are those of public scripts."""

from __future__ import annotations

import pytest

from scalewise.ranks.program.failure import add_source, find_fix

STTY = """Traceback (most recent call last):
  File "/src/pytorch-cifar/main.py", line 15, in <module>
    from utils import progress_bar
  File "/src/pytorch-cifar/utils.py", line 45, in <module>
    _, term_width = os.popen('stty size', 'r').read().split()
    ^^^^^^^^^^^^^
ValueError: not enough values to unpack (expected 2, got 0)"""
UNPACKED = "ValueError: not enough values to unpack (expected 2, got 0)"
WIDTH = """Traceback (most recent call last):
  File "bar.py", line 8, in <module>
    width = os.get_terminal_size().columns
OSError: [Errno 25] Inappropriate ioctl for device"""
DRIVER = (
    "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and "
    "installed a driver from http://www.nvidia.com/Download/index.aspx"
)
PROXY = (
    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='openaipublic.blob.core.windows.net', "
    "port=443): Max retries exceeded with url: /gpt-2/encodings/main/vocab.bpe (Caused by NameResolutionError"
    "(\"HTTPSConnection(host='openaipublic.blob.core.windows.net', port=443): Failed to resolve "
    "'openaipublic.blob.core.windows.net' ([Errno -2] Name or service not known)\"))"
)


@pytest.mark.parametrize(
    "error",
    [
        DRIVER,
        "AssertionError: Torch not compiled with CUDA enabled",
        "AssertionError: insufficient CUDA devices for DDP command",
        "AssertionError: Invalid device id",
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        "RuntimeError: nccl2 requires at least one CUDA device",
        "RuntimeError: Distributed package doesn't have NCCL built in",
        "AssertionError at 02_pytorch_ddp.py:31: assert torch.cuda.is_available()",
    ],
)
def test_an_error_of_cuda_on_cpu_processes_names_the_option_or_what_led_there(error: str) -> None:
    assert "`starts: itself`" in find_fix(error, "", on_cpus=True, as_ranks=True)
    assert "option to train on CPUs" in find_fix(error, "", on_cpus=True, as_ranks=False)
    assert find_fix(error, "", on_cpus=False, as_ranks=True) == ""


@pytest.mark.parametrize(
    ("error", "traceback", "words"),
    [
        pytest.param(UNPACKED, STTY, "`echo 24 80`", id="stty"),
        pytest.param(
            "OSError: [Errno 25] Inappropriate ioctl for device",
            WIDTH,
            "`shutil.get_terminal_size`",
            id="width",
        ),
        pytest.param("ModuleNotFoundError: No module named 'deepspeed'", "", "`python:`", id="module"),
        pytest.param(
            "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
            "",
            "`prepare`",
            id="urllib and torch.hub",
        ),
        pytest.param(
            "urllib.error.URLError: <urlopen error [Errno 111] Connection refused>",
            "",
            "`prepare`",
            id="refused",
        ),
        pytest.param(PROXY, "", "`prepare`", id="requests and tiktoken"),
        pytest.param(
            "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the "
            "file on the Hub and we cannot find the requested files in the local cache.",
            "",
            "`prepare`",
            id="huggingface_hub",
        ),
        pytest.param(
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find "
            "them in the cached files.",
            "",
            "`prepare`",
            id="transformers",
        ),
        pytest.param("httpx.ConnectError: [Errno -2] Name or service not known", "", "`prepare`", id="httpx"),
        pytest.param(
            "RuntimeError: Error downloading train-images-idx3-ubyte.gz:", "", "`prepare`", id="torchvision"
        ),
    ],
)
def test_an_error_that_a_batch_job_causes_comes_with_its_fix(error: str, traceback: str, words: str) -> None:
    assert words in find_fix(error, traceback, on_cpus=False, as_ranks=True)


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: no more samples in shard 7",
        UNPACKED,
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address "
        "of (node07, 29500). The IPv4 network addresses of (node07, 29500) cannot be retrieved (gai error: "
        "-2 - Name or service not known).",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "",
    ],
)
def test_another_error_stands_by_itself(error: str) -> None:
    assert find_fix(error, "Traceback (most recent call last):", on_cpus=True, as_ranks=True) == ""


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_an_error_without_a_message_is_quoted_with_file_line_and_source(prefix: str) -> None:
    traceback = [
        "Traceback (most recent call last):",
        '  File "/src/pyro/svi_torch.py", line 20, in <module>',
        "    main()",
        '  File "/src/pyro/svi_torch.py", line 12, in main',
        "    assert pyro.__version__.startswith('1.9')",
        "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "AssertionError",
    ]
    lines = [prefix + line for line in traceback]
    quoted = "AssertionError at svi_torch.py:12: assert pyro.__version__.startswith('1.9')"
    assert add_source("AssertionError", lines) == quoted
    assert add_source("AssertionError: needs pyro 1.9", lines) == "AssertionError: needs pyro 1.9"
    assert add_source("AssertionError", ["AssertionError"]) == "AssertionError"
