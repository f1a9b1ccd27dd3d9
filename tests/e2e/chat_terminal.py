"""chat on a terminal: letters beyond ASCII are typed, what is refused leaves the terminal as it was, and
an interrupt stops the answer, not the program.

Usage: chat_terminal.py QUERN MODEL
"""
import os
import pty
import select
import signal
import sys
import time

quern, model = sys.argv[1:3]
PATIENCE = 100  # seconds, for a busy machine or a sanitizer


class Chat:
    def __init__(self, *options):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            for name in ("LANG", "LC_ALL", "LC_CTYPE"):
                os.environ.pop(name, None)
            os.environ["TERM"] = "xterm"
            os.execv(quern, [quern, "chat", model, *options])
        self.unread = b""
        self.until("> ")

    def wait(self, is_there, what):
        begin = time.time()
        while not is_there():
            if time.time() - begin > PATIENCE:
                sys.exit(f"no {what} in {self.unread!r}")
            if select.select([self.fd], [], [], 0.1)[0]:
                self.unread += os.read(self.fd, 4096)

    def until(self, mark):
        """What is printed up to and with the mark."""
        self.wait(lambda: mark.encode() in self.unread, repr(mark))
        end = self.unread.index(mark.encode()) + len(mark.encode())
        text, self.unread = self.unread[:end], self.unread[end:]
        return text.decode()

    def say(self, text):
        os.write(self.fd, text.encode())

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def check(is_so, what):
    if not is_so:
        sys.exit(what)


chat = Chat("--greedy", "-n", "1", "--ctx", "64")
chat.say("R\u00e9p\u00e8te: \u65e5\u672c \U0001f600\n")
echo = chat.until("\n")
check("R\u00e9p\u00e8te: \u65e5\u672c \U0001f600" in echo, f"the line was typed as {echo!r}")
chat.until("> ")
chat.say("word " * 60 + "\n")
refused = chat.until("--ctx is 64")
check("\x1b[2m" not in refused + chat.until("> "), "a refused prompt left the terminal dim")
chat.kill()

# The signal that Ctrl-C sends, once the answer runs: a key could arrive while the line editor holds the terminal.
chat = Chat("--temperature", "0", "--ctx", "32768", "-n", "30000", "--no-think", "--frequency-penalty", "-20")
chat.say("Count.\n")
chat.until("\n")  # the echo
chat.wait(lambda: len(chat.unread) > 200, "answer")
os.kill(chat.pid, signal.SIGINT)
chat.until("[stopped]")
chat.until("> ")
chat.kill()
