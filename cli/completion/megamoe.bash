# bash completion for megamoe: commands, the options that `--help` lists, files where files are meant.
_megamoe() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W "run plan inspect models bench doctor --help --version" -- "$current")
    return
  fi
  case $previous in
    --checkpoint | --inputs | --output | --append)
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
      return
      ;;
    --device)
      mapfile -t COMPREPLY < <(compgen -W "cpu cuda" -- "$current")
      return
      ;;
    --routing)
      mapfile -t COMPREPLY < <(compgen -W "uniform zipf:1.0 hot one-expert one-rank" -- "$current")
      return
      ;;
    --protocol)
      mapfile -t COMPREPLY < <(compgen -W "cold steady cold,steady" -- "$current")
      return
      ;;
    --input)
      mapfile -t COMPREPLY < <(compgen -W "fp8 bf16 fp8,bf16" -- "$current")
      return
      ;;
    --part)
      mapfile -t COMPREPLY < <(compgen -W "auto block routed" -- "$current")
      return
      ;;
    --only)
      mapfile -t COMPREPLY < <(compgen -W "layer gemm" -- "$current")
      return
      ;;
    --check)
      mapfile -t COMPREPLY < <(compgen -W "all rows:64 none" -- "$current")
      return
      ;;
  esac
  if [[ $command == inspect && $current != -* ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
    return
  fi
  local options
  options=$("${COMP_WORDS[0]}" "$command" --help 2>/dev/null | grep -o -- '--[a-z][a-z-]*' | sort -u)
  mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
}
complete -o filenames -F _megamoe megamoe
