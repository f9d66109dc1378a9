#!/usr/bin/env python3
"""What a compiler and a linker can do against a mistake in memory is done in the programs that are shipped (docs/explanation/security.md). Asks
the programs themselves, by readelf, as a flag in a build's file may reach nothing."""
import re
import shutil
import subprocess
import unittest

from binaries import BIN

PROGRAMS = ("ebbd", "ebb", "ebb-lab")


def each(what):
    """What readelf says of each program."""
    for program in PROGRAMS:
        yield subprocess.run(["readelf", "--wide", what, BIN / program], capture_output=True, text=True, check=True).stdout


@unittest.skipUnless(shutil.which("readelf"), "no readelf (Debian: binutils)")
class Hardened(unittest.TestCase):
    def test_is_placed_anywhere_in_memory(self):
        for header in each("--file-header"):
            self.assertRegex(header, r"Type: +DYN \(Position-Independent Executable file\)")

    def test_what_the_loader_wrote_is_read_only_before_main_begins(self):
        for segments in each("--segments"):
            self.assertIn("GNU_RELRO", segments)
        for dynamic in each("--dynamic"):
            self.assertIn("BIND_NOW", dynamic)

    def test_nothing_is_both_writable_and_executable(self):
        for segments in each("--segments"):
            found = re.findall(r"^ +(?:LOAD|GNU_STACK) +(?:0x[0-9a-f]+ +){5}([RWE ]{3}) ", segments, re.MULTILINE)
            self.assertGreater(len(found), 2, segments)
            self.assertFalse([flags for flags in found if "W" in flags and "E" in flags], segments)

    def test_looks_after_its_stack_its_containers_and_what_libc_writes(self):
        for symbols in each("--dyn-syms"):
            self.assertIn("__stack_chk_fail", symbols)
            self.assertIn("__glibcxx_assert_fail", symbols)
            self.assertRegex(symbols, r"__[a-z]+_chk@")


if __name__ == "__main__":
    unittest.main(verbosity=2)
