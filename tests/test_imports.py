import subprocess
import sys


def test_the_core_needs_no_torch_and_no_command_line():
    code = (
        "import sys, soba; heavy = {'torch', 'typer', 'rich', 'PIL', 'onnxruntime', 'sqlite3'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_cli_extra_the_command_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; import soba.cli"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode != 0
    assert "pip install 'soba-tta[cli]'" in run.stderr
    assert "Traceback" not in run.stderr
