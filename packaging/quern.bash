# Completion of quern's commands and options in bash: source it, or install it as
# /usr/share/bash-completion/completions/quern. What it offers is read from quern's own help.
_quern() {
  local cur=${COMP_WORDS[COMP_CWORD]}
  if [ "$COMP_CWORD" = 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$(quern help 2>/dev/null | sed -n 's/^  \([a-z]\{1,\}\) .*/\1/p')" -- "$cur")
  elif [[ $cur == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(quern "${COMP_WORDS[1]}" --help 2>/dev/null | grep -oE -e '--[a-z][a-z0-9-]*' | sort -u)" -- "$cur")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
  fi
}
complete -o filenames -F _quern quern
