"""The `minhub` command in this process: commands that succeed and commands that fail."""

from click.testing import CliRunner, Result

from minhub_py.cli.main import main


def minhub(*arguments: object, input: str | bytes | None = None, **settings: object) -> Result:
    return CliRunner().invoke(
        main, [str(argument) for argument in arguments], input=input, **settings
    )


def succeeded(*arguments: object, input: str | bytes | None = None, **settings: object) -> Result:
    """The result of a command that must succeed."""
    result = minhub(*arguments, input=input, **settings)
    assert result.exit_code == 0, result.output
    return result


def done(*arguments: object, input: str | bytes | None = None, **settings: object) -> str:
    """The standard output of a command that must succeed."""
    return succeeded(*arguments, input=input, **settings).stdout


def failed(*arguments: object, status: int = 1) -> str:
    """The message of a command that must fail: on standard error only; at most two lines for status
    1.
    """
    result = minhub(*arguments)
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "run again with --debug" not in result.stderr  # an unexpected error
    if status == 1:
        assert len(result.stderr.strip().splitlines()) <= 2
    return result.stderr
